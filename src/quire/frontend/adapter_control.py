"""Loads, pins and removes adapters: operations of all engines, as in `control`."""

from __future__ import annotations

import uuid
from typing import Any

import msgspec

from quire.adapters import AnyAdapterRequest, LoRARequest, PromptAdapterRequest
from quire.errors import ConfigError
from quire.frontend.control import Command, Operation, Wait

_POLL_S = 0.005
"""Seconds between two questions whether an adapter is loaded."""
_LORA, _PROMPT = "adapters", "prompt_adapters"
"""What the names of the commands begin with."""


def add_lora(lora_request: LoRARequest) -> Operation[bool]:
    """Loads an adapter, unless one with this number and folder is in memory; with `load_inplace`
    in any case. Steps go on meanwhile. Requests that have begun keep the version they began with.
    Returns True. Raises ConfigError for an adapter that cannot be loaded."""
    if not isinstance(lora_request, LoRARequest):
        raise TypeError(f"lora_request must be a LoRARequest, got {type(lora_request).__name__}")
    return (yield from _load(_LORA, lora_request))


def remove_lora(lora_id: int) -> Operation[bool]:
    """Forgets an adapter; requests that use it go on. Returns whether it was known."""
    return bool((yield Command(f"{_LORA}_remove", (lora_id,))))


def list_loras() -> Operation[set[int]]:
    """The numbers of the adapters that are in memory."""
    return set((yield Command(f"{_LORA}_ids")))


def pin_lora(lora_id: int) -> Operation[bool]:
    """Keeps an adapter in memory until it is removed. Raises ConfigError if it is not there."""
    return (yield from _pin(_LORA, lora_id))


def add_prompt_adapter(prompt_adapter_request: PromptAdapterRequest) -> Operation[bool]:
    """Loads a prompt adapter, unless one with this number and folder is in memory. Returns True.
    Raises ConfigError for an adapter that cannot be loaded."""
    if not isinstance(prompt_adapter_request, PromptAdapterRequest):
        kind = type(prompt_adapter_request).__name__
        raise TypeError(f"prompt_adapter_request must be a PromptAdapterRequest, got {kind}")
    return (yield from _load(_PROMPT, prompt_adapter_request))


def remove_prompt_adapter(prompt_adapter_id: int) -> Operation[bool]:
    """Forgets a prompt adapter; requests that use it go on. Returns whether it was known."""
    return bool((yield Command(f"{_PROMPT}_remove", (prompt_adapter_id,))))


def list_prompt_adapters() -> Operation[set[int]]:
    """The numbers of the prompt adapters that are in memory."""
    return set((yield Command(f"{_PROMPT}_ids")))


def pin_prompt_adapter(prompt_adapter_id: int) -> Operation[bool]:
    """Keeps a prompt adapter in memory until it is removed. Raises ConfigError if it is not
    there."""
    return (yield from _pin(_PROMPT, prompt_adapter_id))


def _load(prefix: str, request: AnyAdapterRequest) -> Operation[bool]:
    ticket = uuid.uuid4().hex
    yield Command(f"{prefix}_begin_load", (msgspec.to_builtins(request), ticket))
    found: dict[str, Any] | None
    while (found := (yield Command(f"{prefix}_load_result", (ticket,)))) is None:
        yield Wait(_POLL_S)
    if "error" in found:
        raise ConfigError(found["error"])
    return True


def _pin(prefix: str, adapter_id: int) -> Operation[bool]:
    if not (yield Command(f"{prefix}_pin", (adapter_id,))):
        raise ConfigError(f"the adapter {adapter_id!r} cannot be pinned: it is not loaded")
    return True
