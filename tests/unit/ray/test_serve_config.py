"""The configuration of an application of Ray Serve, and how many replicas it gets. Without Ray."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quire.errors import ConfigError
from quire.ray.serve.access import required_keys
from quire.ray.serve.application import _with_one_server, build_openai_app, deployment_options
from quire.ray.serve.autoscaling import scale_on_queue_seconds, wanted_replicas
from quire.ray.serve.config import LLMConfig

DEMO: dict[str, Any] = {"model_loading_config": {"model_id": "demo"}}
OTHER: dict[str, Any] = {"model_loading_config": {"model_id": "other", "model_source": "demo"}}


def test_a_configuration_becomes_arguments_of_engine_and_server(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        "model_loading_config: {model_id: mine, model_source: demo}\n"
        "llm_engine: vLLM\n"
        "engine_kwargs: {tensor_parallel_size: 2, num_threads: 3}\n"
        "lora_config: {max_num_adapters_per_replica: 4}\n"
        "server_kwargs: {api_key: secret, max_n: 2}\n"
    )
    config = LLMConfig.of(str(file))
    args, server = config.engine_args(), config.server_args()
    assert (args.model, args.served_model_name, args.tensor_parallel_size) == ("demo", "mine", 2)
    assert (args.enable_lora, args.max_cpu_loras) == (True, 4)
    assert (server.api_key, server.max_n, server.ui) == (("secret",), 2, False)
    options = deployment_options(config)
    assert options["ray_actor_options"] == {"num_cpus": 6}
    assert options["graceful_shutdown_timeout_s"] > server.shutdown_timeout


def test_bundles_of_ranks_come_after_that_of_the_replica() -> None:
    given = {"distributed_executor_backend": "ray", "tensor_parallel_size": 2, "num_threads": 4}
    options = deployment_options(LLMConfig(**DEMO, engine_kwargs=given))
    assert options["placement_group_bundles"] == [{"CPU": 1}, {"CPU": 4}, {"CPU": 4}]
    assert options["ray_actor_options"] == {"num_cpus": 1}


def test_each_rank_on_gpus_needs_one_of_ray() -> None:
    given = {"device": "cuda", "tensor_parallel_size": 2, "num_threads": 1}
    options = deployment_options(LLMConfig(**DEMO, engine_kwargs=given, accelerator_type="H100"))
    assert options["ray_actor_options"] == {
        "num_cpus": 2, "num_gpus": 2, "accelerator_type": "H100"
    }  # fmt: skip
    given["distributed_executor_backend"] = "ray"
    options = deployment_options(LLMConfig(**DEMO, engine_kwargs=given))
    assert options["placement_group_bundles"] == [{"CPU": 1}, *[{"CPU": 1, "GPU": 1}] * 2]
    assert options["ray_actor_options"] == {"num_cpus": 1}


def test_autoscaling_follows_the_queue_unless_the_user_says_otherwise() -> None:
    given: dict[str, Any] = {"autoscaling_config": {"max_replicas": 3, "upscale_delay_s": 1}}
    found = deployment_options(LLMConfig(**DEMO, deployment_config=given))["autoscaling_config"]
    assert found["policy"]["policy_function"] is scale_on_queue_seconds
    assert (found["max_replicas"], found["upscale_delay_s"], found["downscale_delay_s"]) == (
        3, 1, 300.0
    )  # fmt: skip


@pytest.mark.parametrize(
    ("num_replicas", "num_requests", "queue_s", "wanted"),
    [
        (2, 10.0, [0.0, 0.0], 1),
        (2, 30.0, [0.0, 0.0], 2),  # they need the places
        (2, 40.0, [3.0, 3.0], 3),
        (2, 40.0, [90.0, 90.0], 4),  # twice as many at most
        (4, 5.0, [0.5, 0.5, 0.5, 0.5], 1),
        (0, 3.0, [], 1),
        (1, 0.0, [], 1),
    ],
)
def test_replicas_for_a_queue(
    num_replicas: int, num_requests: float, queue_s: list[float], wanted: int
) -> None:
    assert wanted_replicas(num_replicas, num_requests, queue_s, [16.0] * len(queue_s)) == wanted


def test_replicas_follow_the_requests_of_engines_not_the_calls_of_front_ends() -> None:
    context = SimpleNamespace(
        aggregated_metrics={
            "queue_seconds": {1: 0.0, 2: 0.0}, "places": {1: 16.0, 2: 16.0},
            "open_requests": {1: 30.0, 2: 8.0},
        },
        current_num_replicas=2, total_num_requests=2.0,
        capacity_adjusted_min_replicas=1, capacity_adjusted_max_replicas=9,
    )  # fmt: skip
    assert scale_on_queue_seconds(context)[0] == 3.0
    context.aggregated_metrics = {}
    context.current_num_replicas = 0
    assert scale_on_queue_seconds(context)[0] == 1.0


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "model_loading_config is missing"),
        ({"model_loading_config": {"model_source": "demo"}}, "must have the name of a model"),
        ({"model_loading_config": {"model_id": "demo", "sourc": 1}}, "'sourc' is not known"),
        ({**DEMO, "accelerator_type": "A10G"}, "Quire computes on CPUs"),
        ({**DEMO, "llm_engine": "SGLang"}, "llm_engine='SGLang' must be one of"),
        ({**DEMO, "engine_kwarg": {}}, "did you mean"),
        ({**DEMO, "engine_kwargs": {"model": "x"}}, "model belongs to model_loading_config"),
        ({**DEMO, "engine_kwargs": {"nothing": 1}}, "nothing"),
        ({**DEMO, "server_kwargs": {"port": 1}}, "Ray Serve sets it"),
        ({**DEMO, "server_kwargs": {"nothing": 1}}, "nothing"),
        ({**DEMO, "experimental_configs": {"a": 1}}, "experimental_configs must be left out"),
    ],
)
def test_what_cannot_be_served_is_refused(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        LLMConfig.of(given)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"llm_config": [DEMO]}, "'llm_config' is not known"),
        ({"llm_configs": []}, "llm_configs must be a list of configurations"),
        ({"llm_configs": [DEMO, DEMO]}, "each model_id must be there once"),
        (
            {
                "llm_configs": [
                    {**DEMO, "server_kwargs": {"max_n": 2}},
                    {**OTHER, "server_kwargs": {"max_n": 3}},
                ]
            },
            "server_kwargs must be the same",
        ),
        (
            {"llm_configs": [{**DEMO, "deployment_config": {"request_router_config": {}}}, OTHER]},
            "request_router_config of 'demo' must be left out",
        ),
        ({"llm_configs": ["/nowhere.yaml"]}, "llm_configs /nowhere.yaml: cannot be read"),
    ],
)
def test_an_application_that_cannot_be_is_refused(given: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        build_openai_app(given)


def test_a_key_is_required() -> None:
    with pytest.raises(ConfigError, match="must have an api_key"):
        required_keys((), is_insecure=False)
    assert required_keys((), is_insecure=True) == ()


def test_models_of_one_server_have_adapters_of_their_own() -> None:
    first = LLMConfig(**DEMO, server_kwargs={"max_n": 2, "lora_modules": ["red=/red"]})
    both = _with_one_server([first, LLMConfig(**OTHER)])
    assert [one.server_kwargs for one in both] == [first.server_kwargs, {"max_n": 2}]
