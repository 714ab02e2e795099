"""`LoRAConfig` and `PromptAdapterConfig`: how many adapters are kept and how large they may be.

Made from vLLM's arguments.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from quire.errors import ConfigError, quoted

_MOST_RANK = 512
_DEFAULT_ADAPTERS = 8
"""Adapters for which memory is planned where the user gives no number. For a mixture it is one,
because most bytes of the largest adapter are for experts, and many adapters have none."""


@dataclass(frozen=True, slots=True)
class AdapterLimits:
    """Limits on the adapters of one kind that are in memory."""

    memory_bytes: int
    """Bytes of all of them, at most."""
    adapter_bytes: int
    """Bytes of the largest one."""


@dataclass(frozen=True, slots=True)
class PromptAdapterConfig:
    """Limits of prompt adapters."""

    max_prompt_adapters: int
    """Adapters of the largest size for which there is memory."""
    max_prompt_adapter_token: int
    """Most virtual tokens of an adapter."""
    token_bytes: int = 0
    """Bytes of a virtual token of the largest kind."""

    @property
    def limits(self) -> AdapterLimits:
        """Limits for `Residents`."""
        one = self.max_prompt_adapter_token * self.token_bytes
        return AdapterLimits(self.max_prompt_adapters * one, one)


@dataclass(frozen=True, slots=True)
class LoRAConfig:
    """Limits of adapters."""

    max_lora_rank: int
    max_loras: int | None
    """Most adapters in a step, which the scheduler observes; None: no limit."""
    max_cpu_loras: int
    """Adapters of the largest size for which there is memory; 0: not settled yet."""
    lora_dtype: Literal["float32", "bfloat16"]
    """Number format in which the adapters are kept."""
    adapter_bytes: int = 0
    """Bytes of an adapter of `max_lora_rank` for all modules."""

    def sized(self, adapter_bytes: int, *, has_experts: bool) -> LoRAConfig:
        """The same limits for a model whose adapters have so many bytes."""
        least = max(self.max_loras or 1, 1 if has_experts else _DEFAULT_ADAPTERS)
        kept = self.max_cpu_loras or least
        return replace(self, adapter_bytes=adapter_bytes, max_cpu_loras=kept)

    @property
    def memory_bytes(self) -> int:
        """Bytes of all adapters in memory, at most."""
        return self.max_cpu_loras * self.adapter_bytes

    @property
    def limits(self) -> AdapterLimits:
        """Limits for `Residents`."""
        return AdapterLimits(self.memory_bytes, self.adapter_bytes)


def lora_config(
    *,
    enable_lora: Any,
    max_lora_rank: Any,
    max_loras: Any,
    max_cpu_loras: Any,
    lora_dtype: Any,
    dtype: Literal["float32", "bfloat16"],
) -> LoRAConfig | None:
    """The configuration of these arguments; None: no adapters. Raises ConfigError."""
    if not isinstance(enable_lora, bool):
        raise ConfigError(f"enable_lora must be True or False, got {quoted(enable_lora)}")
    rank = _count("max_lora_rank", max_lora_rank, _MOST_RANK)
    at_once = None if max_loras is None else _count("max_loras", max_loras, 2**31 - 1)
    kept = 0
    if max_cpu_loras is not None:
        kept = _count("max_cpu_loras", max_cpu_loras, 2**31 - 1)
        if at_once is not None and kept < at_once:
            raise ConfigError(f"max_cpu_loras ({kept}) must be >= max_loras ({at_once}).")
    kinds = {"auto": dtype, "bfloat16": "bfloat16", "float16": "bfloat16", "float32": "float32"}
    if lora_dtype not in kinds:
        raise ConfigError(f"lora_dtype must be one of {', '.join(kinds)}, not {quoted(lora_dtype)}")
    if not enable_lora:
        return None
    return LoRAConfig(rank, at_once, kept, kinds[lora_dtype])


def prompt_adapter_config(
    *, enable_prompt_adapter: Any, max_prompt_adapters: Any, max_prompt_adapter_token: Any
) -> PromptAdapterConfig | None:
    """The configuration of these arguments; None: no prompt adapters. Raises ConfigError."""
    if not isinstance(enable_prompt_adapter, bool):
        raise ConfigError(
            f"enable_prompt_adapter must be True or False, got {quoted(enable_prompt_adapter)}"
        )
    kept = _count("max_prompt_adapters", max_prompt_adapters, 2**31 - 1)
    if not enable_prompt_adapter:
        return None
    if max_prompt_adapter_token == 0:
        raise ConfigError(
            "max_prompt_adapter_token must be set with enable_prompt_adapter. It is the most "
            "virtual tokens of an adapter, such as 64."
        )
    longest = _count("max_prompt_adapter_token", max_prompt_adapter_token, 2**31 - 1)
    return PromptAdapterConfig(kept, longest)


def _count(name: str, value: Any, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise ConfigError(f"{name} must be from 1 to {most}, got {quoted(value)}")
    return value
