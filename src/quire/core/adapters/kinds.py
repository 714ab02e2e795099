"""The kinds of adapters: what `AdapterManager` does differently for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from quire.adapters import AnyAdapterRequest, LoRARequest, PromptAdapterRequest
from quire.errors import RequestError
from quire.executor.base import Executor
from quire.protocol import EngineCoreRequest


@dataclass(frozen=True, slots=True)
class AdapterKind:
    """Functions that find adapters of one kind, load them, and give them to requests."""

    request_type: type[AnyAdapterRequest]
    of: Callable[[EngineCoreRequest], AnyAdapterRequest | None]
    """The adapter of this kind that a request names."""
    load: Callable[[str, str], dict[str, Any]]
    """Loads the adapter in a folder, on any thread: at least `digest`, `num_bytes` and
    `description`."""
    drop: Callable[[str], None]
    """Drops the adapter with a digest."""
    prepared: Callable[[EngineCoreRequest, Mapping[str, Any]], EngineCoreRequest]
    """The request with what `load` has returned. Raises RequestError if they do not fit."""
    prefix: str = "adapters"
    """First part of the names of commands."""
    refusal: str = ""
    """Error of these commands in an engine without such adapters."""
    check: Callable[[], None] = lambda: None
    """Raises ConfigError if no adapter can be loaded now."""


def lora_kind(executor: Executor, check: Callable[[], None]) -> AdapterKind:
    """LoRA adapters."""
    return AdapterKind(
        LoRARequest,
        lambda request: request.lora,
        executor.load_adapter,
        executor.drop_adapter,
        lambda request, found: msgspec.structs.replace(request, adapter=found["digest"]),
        refusal="LoRA is not enabled: use enable_lora=True",
        check=check,
    )


def prompt_kind(executor: Executor) -> AdapterKind:
    """Prompt adapters."""
    return AdapterKind(
        PromptAdapterRequest,
        lambda request: request.prompt_adapter,
        executor.load_prompt_adapter,
        executor.drop_prompt_adapter,
        _with_virtual_tokens,
        prefix="prompt_adapters",
        refusal="prompt adapters are not enabled: use enable_prompt_adapter=True",
    )


def _with_virtual_tokens(request: EngineCoreRequest, found: Mapping[str, Any]) -> EngineCoreRequest:
    """The request whose first input rows, which the front end has left room for, are those of the
    adapter."""
    first, *rest = request.input_rows
    if first.count != found["num_tokens"]:
        adapter = request.prompt_adapter
        name = "" if adapter is None else adapter.name
        raise RequestError(
            f"prompt_adapter_num_virtual_tokens must be {found['num_tokens']} for the adapter "
            f"{name!r}, got {first.count}"
        )
    rows = msgspec.structs.replace(first, digest=bytes.fromhex(found["digest"]), kind=found["kind"])
    return msgspec.structs.replace(request, input_rows=[rows, *rest])
