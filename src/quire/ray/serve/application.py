"""`build_openai_app`: an application of Ray Serve for one model."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from quire.errors import ConfigError
from quire.ray.serve.access import check_cluster, required_keys
from quire.ray.serve.autoscaling import scale_on_queue_seconds
from quire.ray.serve.config import LLMConfig
from quire.server.http.api_keys import load_api_keys
from quire.suggest import did_you_mean

_ARGUMENTS = ("llm_configs", "insecure")
_DEFAULTS: dict[str, Any] = {
    "max_ongoing_requests": 1000,  # Quire has limits of its own, and answers 503 beyond them
    "health_check_period_s": 2.0,
    "health_check_timeout_s": 10.0,
}
_SCALING: dict[str, Any] = {"upscale_delay_s": 10.0, "downscale_delay_s": 300.0}


def build_openai_app(args: Mapping[str, Any]) -> Any:
    """The application, for `serve.run` or a file of `serve deploy`. `args`: `llm_configs`, a list
    with one configuration; `insecure`: needs no key and no token. Raises ConfigError."""
    for name in args:
        if name not in _ARGUMENTS:
            raise ConfigError(
                f"build_openai_app: {name!r} is not known{did_you_mean(str(name), _ARGUMENTS)}"
            )
    configs = args.get("llm_configs")
    if not isinstance(configs, list | tuple) or len(configs) != 1:
        raise ConfigError(
            "llm_configs must be a list with one configuration: each model is an application, "
            "with a route_prefix of its own"
        )
    return build_llm_deployment(LLMConfig.of(configs[0]), insecure=bool(args.get("insecure")))


def build_llm_deployment(
    llm_config: LLMConfig, *, name_prefix: str = "", insecure: bool = False
) -> Any:
    """The deployment of one model, whose replicas answer HTTP themselves. Raises ConfigError."""
    try:
        serve = import_module("ray.serve")
    except ImportError as error:
        raise ConfigError(
            f"quire.ray.serve needs Ray: pip install 'quire-engine[ray]' ({error})"
        ) from None
    from quire.ray.serve.replica import Replica  # needs all that loads a model

    keys = required_keys(load_api_keys(llm_config.server_args()), is_insecure=insecure)
    if import_module("ray").is_initialized():
        check_cluster(is_insecure=insecure)
    # A class of its own for each deployment, because Ray Serve puts the application into it.
    ingress = serve.ingress()(type("Replica", (Replica,), {"__module__": Replica.__module__}))
    options = deployment_options(llm_config)
    name = name_prefix + "Quire:" + llm_config.model_id.replace("/", "--")
    deployment = serve.deployment(ingress, name=name, **options)
    return deployment.bind(llm_config, keys, is_insecure=insecure)


def deployment_options(llm_config: LLMConfig) -> dict[str, Any]:
    """The options of Ray Serve's deployment: the user's, and what follows from the engine."""
    options = {**_DEFAULTS, **llm_config.deployment_config}
    options.setdefault(
        "graceful_shutdown_timeout_s", llm_config.server_args().shutdown_timeout + 10.0
    )
    scaling = options.get("autoscaling_config")
    if scaling == "auto":
        scaling = {}
    if isinstance(scaling, Mapping):
        policy = {"policy_function": scale_on_queue_seconds}
        options["autoscaling_config"] = {**_SCALING, "policy": policy, **scaling}
    args = llm_config.engine_args()
    num_ranks = args.tensor_parallel_size * args.pipeline_parallel_size
    num_threads = args.num_threads or 1
    actor = dict(options.get("ray_actor_options") or {})
    if llm_config.runtime_env is not None:
        actor.setdefault("runtime_env", llm_config.runtime_env)
    group = llm_config.placement_group_config
    if group is None and args.distributed_executor_backend == "ray":
        group = {"bundles": [{"CPU": 1}] + [{"CPU": num_threads}] * num_ranks, "strategy": "PACK"}
    if group is not None:
        options["placement_group_bundles"] = group["bundles"]
        options["placement_group_strategy"] = group.get("strategy", "PACK")
        actor.setdefault("num_cpus", 1)
    else:
        actor.setdefault("num_cpus", num_threads * num_ranks * args.data_parallel_size)
    options["ray_actor_options"] = actor
    return options
