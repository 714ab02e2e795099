"""`vllm.config.ProfilerConfig`: the record that scripts pass as `profiler_config`."""

from __future__ import annotations

from typing import Any

from quire.planning.profiler import profiler_config


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
