"""`build_openai_app`: an application of Ray Serve for one or more models; `build_pd_openai_app`:
one with replicas that compute prompts, and others that go on with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

from quire.errors import ConfigError, quoted
from quire.ray.serve.access import check_cluster, required_keys
from quire.ray.serve.autoscaling import scale_on_queue_seconds
from quire.ray.serve.config import LLMConfig
from quire.server.http.api_keys import load_api_keys
from quire.suggest import did_you_mean

_OF_ALL = ("ingress_deployment_config", "insecure")
_ARGUMENTS = ("llm_configs", *_OF_ALL)
_OF_HAND_OFF = ("prefill_config", "decode_config")
_DEFAULTS: dict[str, Any] = {
    "max_ongoing_requests": 1000,  # Quire has limits of its own, and answers 503 beyond them
    "health_check_period_s": 2.0,
    "health_check_timeout_s": 10.0,
}
_OF_MODEL = ("lora_modules", "prompt_adapters")
"""Options of the server that each model has for itself."""
_SCALING: dict[str, Any] = {"upscale_delay_s": 10.0, "downscale_delay_s": 300.0}


def build_openai_app(args: Mapping[str, Any]) -> Any:
    """The application, for `serve.run` or a file of `serve deploy`. `args`: `llm_configs`, a
    configuration for each model; `ingress_deployment_config`: options of the deployment that
    answers HTTP; `insecure`: needs no key and no token. Raises ConfigError."""
    _check_names("build_openai_app", args, _ARGUMENTS)
    given = args.get("llm_configs")
    if not isinstance(given, list | tuple) or not given:
        raise ConfigError(
            'llm_configs must be a list of configurations: [{"model_loading_config": ...}]'
        )
    configs = _with_one_server([LLMConfig.of(one) for one in given])
    insecure = bool(args.get("insecure"))
    own_routers = [
        one.model_id for one in configs if "request_router_config" in one.deployment_config
    ]
    if len(configs) == 1 and own_routers:
        return build_llm_deployment(configs[0], insecure=insecure)
    if own_routers:
        raise ConfigError(
            f"request_router_config of {quoted(own_routers[0])} must be left out: with several "
            "models, each request goes to the replica with its prefix"
        )
    return _application(args, configs)


def build_pd_openai_app(pd_serving_args: Mapping[str, Any]) -> Any:
    """An application of one model, for `serve.run` or a file of `serve deploy`. `pd_serving_args`:
    `prefill_config`, the configuration of replicas that compute prompts; `decode_config`, that of
    replicas that go on with their K/V; and the others of `build_openai_app`. Raises ConfigError."""
    args = pd_serving_args
    _check_names("build_pd_openai_app", args, (*_OF_HAND_OFF, *_OF_ALL))
    for name in _OF_HAND_OFF:
        if name not in args:
            raise ConfigError(f'{name} must be a configuration: {{"model_loading_config": ...}}')
    prefill, decode = (LLMConfig.of(args[name]) for name in _OF_HAND_OFF)
    if prefill.model_id != decode.model_id:
        raise ConfigError(
            "prefill_config and decode_config must have the same model_id, got "
            f"{quoted([prefill.model_id, decode.model_id])}"
        )
    if (prefill.lora_config is None) != (decode.lora_config is None):
        raise ConfigError("lora_config must be in both of prefill_config and decode_config")
    for one, role in ((prefill, "kv_producer"), (decode, "kv_consumer")):
        one.engine_kwargs = {"kv_transfer_config": {"kv_role": role}, **one.engine_kwargs}
    return _application(args, [decode], prefill)


def _check_names(builder: str, given: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for name in given:
        if name not in known:
            raise ConfigError(
                f"{builder}: {name!r} is not known{did_you_mean(str(name), [*known])}"
            )


def _application(
    args: Mapping[str, Any], configs: Sequence[LLMConfig], prefill: LLMConfig | None = None
) -> Any:
    """An ingress, and a deployment of engines for each configuration. `prefill`: of those that
    compute the prompts."""
    insecure = bool(args.get("insecure"))
    serve, keys = _ready(configs[0], is_insecure=insecure)
    from quire.ray.serve.engine import Engine
    from quire.ray.serve.replica import Ingress

    def engines_of(one: LLMConfig, kind: str) -> Any:
        deployment = serve.deployment(Engine, name=kind + _name_of(one), **_options_of_engine(one))
        return deployment.bind(one, is_insecure=insecure)

    engines = [engines_of(one, "" if prefill is None else "Decode:") for one in configs]
    options = {
        **_DEFAULTS,
        **_of_ingress(configs[0]),
        **(args.get("ingress_deployment_config") or {}),
    }
    ingress = serve.deployment(_with_application(serve, Ingress), name="Quire", **options)
    prompts = None if prefill is None else engines_of(prefill, "Prefill:")
    return ingress.bind(configs, engines, keys, prompts, is_insecure=insecure)


def build_llm_deployment(
    llm_config: LLMConfig, *, name_prefix: str = "", insecure: bool = False
) -> Any:
    """The deployment of one model, whose replicas answer HTTP themselves. Raises ConfigError."""
    serve, keys = _ready(llm_config, is_insecure=insecure)
    from quire.ray.serve.replica import Replica  # needs all that loads a model

    options = deployment_options(llm_config)
    name = name_prefix + _name_of(llm_config)
    deployment = serve.deployment(_with_application(serve, Replica), name=name, **options)
    return deployment.bind(llm_config, keys, is_insecure=insecure)


def _ready(llm_config: LLMConfig, *, is_insecure: bool) -> tuple[Any, tuple[str, ...]]:
    """Ray Serve, and the API keys. Raises ConfigError."""
    try:
        serve = import_module("ray.serve")
    except ImportError as error:
        raise ConfigError(
            f"quire.ray.serve needs Ray: pip install 'quire-engine[ray]' ({error})"
        ) from None
    keys = required_keys(load_api_keys(llm_config.server_args()), is_insecure=is_insecure)
    if import_module("ray").is_initialized():
        check_cluster(is_insecure=is_insecure)
    return serve, keys


def _with_one_server(configs: Sequence[LLMConfig]) -> list[LLMConfig]:
    """The configurations with the same `server_kwargs`, those of the first that has any; adapters
    belong to a model. Raises ConfigError if others differ, or for a model that is named twice."""
    names = [one.model_id for one in configs]
    if len(set(names)) < len(names):
        raise ConfigError(f"llm_configs: each model_id must be there once, got {quoted(names)}")
    own, shared = [], []
    for one in configs:
        kwargs = one.server_kwargs.items()
        own.append({name: value for name, value in kwargs if name in _OF_MODEL})
        shared.append({name: value for name, value in kwargs if name not in _OF_MODEL})
    common = next(filter(None, shared), {})
    if any(one not in ({}, common) for one in shared):
        raise ConfigError("server_kwargs must be the same in all llm_configs, or in one of them")
    return [
        replace(one, server_kwargs={**common, **adapters})
        for one, adapters in zip(configs, own, strict=True)
    ]


def _name_of(llm_config: LLMConfig) -> str:
    return "Quire:" + llm_config.model_id.replace("/", "--")


def _with_application(serve: Any, server: type) -> Any:
    # A class of its own for each deployment, because Ray Serve puts the application into it.
    return serve.ingress()(type(server.__name__, (server,), {"__module__": server.__module__}))


def _options_of_engine(llm_config: LLMConfig) -> dict[str, Any]:
    from ray.serve.config import RequestRouterConfig

    router = RequestRouterConfig(request_router_class="quire.ray.serve.router.PlacementRouter")
    most = _DEFAULTS["max_ongoing_requests"]  # of front ends; max_num_seqs bounds their requests
    log = {"enable_access_log": False}  # it would have a line for each call of a front end
    options = {"logging_config": log, **deployment_options(llm_config)}
    return {**options, "request_router_config": router, "max_ongoing_requests": most}


def _of_ingress(llm_config: LLMConfig) -> dict[str, Any]:
    actor: dict[str, Any] = {"num_cpus": 0}
    if llm_config.runtime_env is not None:
        actor["runtime_env"] = llm_config.runtime_env
    return {
        "ray_actor_options": actor,
        "graceful_shutdown_timeout_s": llm_config.server_args().shutdown_timeout + 10.0,
    }


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
    of_rank = {"CPU": num_threads}
    if llm_config.has_gpus:
        of_rank["GPU"] = 1
    actor = dict(options.get("ray_actor_options") or {})
    if llm_config.runtime_env is not None:
        actor.setdefault("runtime_env", llm_config.runtime_env)
    group = llm_config.placement_group_config
    if group is None and args.distributed_executor_backend == "ray":
        group = {"bundles": [{"CPU": 1}] + [of_rank] * num_ranks, "strategy": "PACK"}
    if group is not None:
        options["placement_group_bundles"] = group["bundles"]
        options["placement_group_strategy"] = group.get("strategy", "PACK")
        actor.setdefault("num_cpus", 1)
    else:
        count = num_ranks * args.data_parallel_size
        actor.setdefault("num_cpus", num_threads * count)
        if llm_config.has_gpus:
            actor.setdefault("num_gpus", count)
    if llm_config.accelerator_type:
        actor.setdefault("accelerator_type", llm_config.accelerator_type)
    options["ray_actor_options"] = actor
    return options
