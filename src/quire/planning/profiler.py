"""Checks `profiler_config` and converts it to one record. Called by `gather_facts`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire import env
from quire.config.records import ProfilerConfig
from quire.config.vllm_names import Unsupported
from quire.errors import ConfigError, quoted
from quire.suggest import did_you_mean

_EXAMPLE = '{"profiler": "torch", "torch_profiler_dir": "./traces"}'
_WORKS: dict[str, type] = {
    "profiler": str,
    "torch_profiler_dir": str,
    "torch_profiler_with_stack": bool,
    "torch_profiler_use_gzip": bool,
    "delay_iterations": int,
    "max_iterations": int,
}
"""Types of the supported fields."""
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "torch_profiler_activities": (None, ["CPU"]),
    "torch_profiler_with_flops": (False,),
    "torch_profiler_record_shapes": (False,),
    "torch_profiler_with_memory": (False,),
    "torch_profiler_dump_cuda_time_total": (True, False),
    "capture_torch_profiler": (False,),
    "detailed_trace_annotation": (False,),
    "ignore_frontend": (True, False),
    "warmup_iterations": (0,),
    "active_iterations": (5,),
    "wait_iterations": (0,),
    "proton_profiler_dir": ("",),
    "proton_context": ("shadow",),
    "proton_data": ("tree",),
    "proton_backend": (None,),
    "proton_mode": (None,),
    "proton_hook": (None,),
    "proton_output_format": (None,),
    "proton_graph_attribution": (False,),
}
"""vLLM's other fields, with the values that are accepted because they change nothing."""


def profiler_config(given: Mapping[str, Any] | None) -> ProfilerConfig | None:
    """Return the record of `profiler_config`; None: profiling is off. If it has no profiler, the
    environment may give a directory. Raises ConfigError."""
    given = given or {}
    for name, value in given.items():
        _check(name, value)
    if given.get("profiler") is None:
        if given.get("torch_profiler_dir"):
            raise _error("torch_profiler_dir needs profiler=torch", "")
        directory = env.torch_profiler_dir()
        return None if directory is None else _record({"torch_profiler_dir": directory})
    if not given.get("torch_profiler_dir"):
        raise _error("torch_profiler_dir must be set when profiler is torch", "")
    names = [name for name in _WORKS if name != "profiler" and given.get(name) is not None]
    return _record({name: given[name] for name in names})


def _record(fields: Mapping[str, Any]) -> ProfilerConfig:
    """Return the record with an absolute directory, because the engine may run in another
    process."""
    directory = env.expanded(fields["torch_profiler_dir"]).absolute()
    return ProfilerConfig(**{**fields, "torch_profiler_dir": str(directory)})


def _check(name: str, value: Any) -> None:
    if name in _NEUTRAL:
        default, *also = _NEUTRAL[name]
        if not Unsupported(name, default, "", tuple(also)).accepts(value):
            raise _error(f"{name}={quoted(value)} is not supported", f"{default!r}")
    elif name not in _WORKS:
        raise _error(f"{quoted(name)} is not known{did_you_mean(name, [*_WORKS, *_NEUTRAL])}", "")
    elif name == "profiler" and value not in (None, "torch"):
        raise _error(f"profiler={quoted(value)} is not supported", "torch")
    elif value is not None and type(value) is not _WORKS[name]:
        raise _error(f"{name}={quoted(value)} must be of type {_WORKS[name].__name__}", "")
    elif name.endswith("_iterations") and isinstance(value, int) and value < 0:
        raise _error(f"{name} must be greater than or equal to 0, got {value}", "0")


def _error(what: str, works: str) -> ConfigError:
    return ConfigError(f"profiler_config: {what}; try {works or _EXAMPLE}")
