"""`LLMConfig`: the configuration of one model in Ray Serve, with the keys of `ray.serve.llm`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from quire.config.command_line.config_files import read_config
from quire.config.engine_args import AsyncEngineArgs
from quire.errors import ConfigError, quoted
from quire.server.args import ServerArgs
from quire.suggest import did_you_mean

_LOADING = {"model_id", "model_source", "tokenizer_source"}
_WITHOUT_MEANING = {
    "accelerator_config": "accelerator_type names the kind of GPU",
    "server_cls": "the replicas mount Quire's server",
    "callback_config": "there are no callbacks",
}
_ENGINES = ("vLLM", "quire")
"""Names of `llm_engine`: Ray's default is accepted, so that configurations can stay as they are."""
_SERVE_OWN = ("host", "port", "uds", "headless", "root_path", "ssl_keyfile", "ssl_certfile")
"""Options of the server that Ray Serve decides."""


@dataclass
class LLMConfig:
    """Raises ConfigError for keys that are unknown, or that mean nothing here."""

    model_loading_config: dict[str, Any]
    """`model_id`: the name that requests use; `model_source`: the model, if its name is not one."""
    engine_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the engine, those of `AsyncEngineArgs`."""
    deployment_config: dict[str, Any] = field(default_factory=dict)
    """Options of Ray Serve's deployment, such as `autoscaling_config` and `num_replicas`."""
    placement_group_config: dict[str, Any] | None = None
    """`bundles` and `strategy`, the first bundle for the replica itself."""
    runtime_env: dict[str, Any] | None = None
    lora_config: dict[str, Any] | None = None
    """`max_num_adapters_per_replica`: adapters are on, and so many are held."""
    server_kwargs: dict[str, Any] = field(default_factory=dict)
    """Options of `quire serve`, such as `api_key`; a key of this project."""
    llm_engine: str = "quire"
    log_engine_metrics: bool | None = None
    """Without effect: /metrics has the metrics of a replica."""
    experimental_configs: dict[str, Any] = field(default_factory=dict)
    accelerator_type: str | None = None
    """Ray's name of the kind of GPU, such as `H100`, for models on GPUs."""
    accelerator_config: Any = None
    server_cls: Any = None
    callback_config: Any = None

    def __post_init__(self) -> None:
        loading = self.model_loading_config
        if not isinstance(loading, Mapping) or not isinstance(loading.get("model_id"), str):
            raise ConfigError(
                'model_loading_config must have the name of a model: {"model_id": "demo"}'
            )
        for name in loading.keys() - _LOADING:
            raise _unknown("model_loading_config", name, _LOADING)
        if self.llm_engine not in _ENGINES:
            raise ConfigError(f"llm_engine={quoted(self.llm_engine)} must be one of {_ENGINES}")
        for name, reason in _WITHOUT_MEANING.items():
            if getattr(self, name):
                raise ConfigError(f"{name} must be left out: {reason}")
        if self.experimental_configs:
            raise ConfigError("experimental_configs must be left out: none of its keys is known")
        for name in self.server_kwargs:
            if name in _SERVE_OWN:
                raise ConfigError(f"server_kwargs: {name} must be left out: Ray Serve sets it")
        if self.accelerator_type and not self.has_gpus:
            raise ConfigError(
                "accelerator_type must be left out: Quire computes on CPUs here; try "
                'engine_kwargs={"device": "cuda"}'
            )
        self.engine_args()
        self.server_args()

    @classmethod
    def of(cls, given: Any) -> LLMConfig:
        """A configuration that is one already, a mapping, or a file of YAML."""
        if isinstance(given, cls):
            return given
        if isinstance(given, str | Path):
            given = read_config(Path(given), "llm_configs")
        if not isinstance(given, Mapping):
            raise ConfigError(
                f"llm_configs must have LLMConfig, mappings or files, got {quoted(given)}"
            )
        names = {one.name for one in fields(cls)}
        for name in given.keys() - names:
            raise _unknown("LLMConfig", name, names)
        if "model_loading_config" not in given:
            raise ConfigError('model_loading_config is missing; try {"model_id": "demo"}')
        return cls(**given)

    @property
    def model_id(self) -> str:
        """The name that requests use."""
        name: str = self.model_loading_config["model_id"]
        return name

    @property
    def has_gpus(self) -> bool:
        """Whether `device` or `backend` names GPUs: replicas need them of Ray then."""
        return str(self.engine_kwargs.get("device")).startswith("cuda") or (
            self.engine_kwargs.get("backend") == "cuda"
        )

    def engine_args(self) -> AsyncEngineArgs:
        """Raises ConfigError."""
        loading, given = self.model_loading_config, dict(self.engine_kwargs)
        for name in ("model", "served_model_name"):
            if name in given:
                raise ConfigError(f"engine_kwargs: {name} belongs to model_loading_config")
        if loading.get("tokenizer_source"):
            given.setdefault("tokenizer", loading["tokenizer_source"])
        if self.lora_config is not None:
            given.setdefault("enable_lora", True)
            most = self.lora_config.get("max_num_adapters_per_replica")
            if most is not None:
                given.setdefault("max_cpu_loras", most)
        try:
            return AsyncEngineArgs(
                model=loading.get("model_source") or self.model_id,
                served_model_name=self.model_id,
                **given,
            )
        except TypeError as error:
            raise ConfigError(f"engine_kwargs: {error}") from None

    def server_args(self) -> ServerArgs:
        """Raises ConfigError."""
        given = dict(self.server_kwargs)
        for name in ("api_key", "operator_api_key"):
            if isinstance(given.get(name), str):
                given[name] = (given[name],)
        try:
            return ServerArgs(**{**given, "ui": given.get("ui", False)})
        except TypeError as error:
            raise ConfigError(f"server_kwargs: {error}") from None


def _unknown(where: str, name: Any, known: set[str]) -> ConfigError:
    return ConfigError(f"{where}: {quoted(name)} is not known{did_you_mean(str(name), [*known])}")
