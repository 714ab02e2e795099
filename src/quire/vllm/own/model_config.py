"""`vllm.config.ModelConfig`: a model's configuration, for scripts that need no engine."""

from __future__ import annotations

from typing import Any

from quire.config.records import ModelConfig as ModelConfig_
from quire.planning.engine_args import EngineArgs


def ModelConfig(model: str = "", **options: Any) -> ModelConfig_:  # noqa: N802 - a class in vLLM
    """Return the `model_config` of an engine with these arguments. Does not read weights. Raises
    ConfigError, ModelError."""
    return EngineArgs(model=model, **options).create_engine_config().model
