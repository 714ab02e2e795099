"""Records and classes of vLLM that scripts import: configurations, the platform, usage contexts."""

from __future__ import annotations

import platform
from enum import Enum
from typing import Any

from quire.config.records import ModelConfig as ModelConfig_
from quire.planning.engine_args import EngineArgs
from quire.planning.profiler import profiler_config


def ModelConfig(model: str = "", **options: Any) -> ModelConfig_:  # noqa: N802 - a class in vLLM
    """Return the `model_config` of an engine with these arguments. Does not read weights. Raises
    ConfigError, ModelError."""
    return EngineArgs(model=model, **options).create_engine_config().model


class ProfilerConfig(dict[str, Any]):
    """The fields of vLLM's record, which are checked when the record is created."""

    def __init__(self, **fields: Any) -> None:
        """Raises ConfigError."""
        profiler_config(fields)
        super().__init__(fields)

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"ProfilerConfig has no field {name}") from None


class KernelConfig(dict[str, Any]):
    """`kernel_config`. The fields have no effect, because kernels are compiled ahead of time."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(fields)


class UsageContext(str, Enum):
    """Purpose of the engine. Accepted, but without effect."""

    UNKNOWN_CONTEXT = "UNKNOWN_CONTEXT"
    LLM_CLASS = "LLM_CLASS"
    API_SERVER = "API_SERVER"
    OPENAI_API_SERVER = "OPENAI_API_SERVER"
    OPENAI_BATCH_RUNNER = "OPENAI_BATCH_RUNNER"
    ENGINE_CONTEXT = "ENGINE_CONTEXT"


def _no(*_: object) -> bool:
    return False


class CpuPlatform:
    """This machine, with the interface of vLLM's platforms."""

    device_type = "cpu"
    device_name = "cpu"
    is_cuda = is_cuda_alike = is_rocm = is_tpu = is_xpu = _no
    is_out_of_tree = is_unspecified = _no

    def is_cpu(self) -> bool:
        """Return True."""
        return True

    def device_count(self) -> int:
        """Return 1: all processors together are one device."""
        return 1

    def get_device_name(self, device_id: int = 0) -> str:
        """Return the kind of processor."""
        del device_id
        return platform.processor() or platform.machine()


current_platform = CpuPlatform()
