"""Names of adapters: the fields of requests, and the adapters of a server's options."""

from __future__ import annotations

from typing import Any

from quire.adapters.modules import AdapterModule, parse_modules, parse_prompt_adapters
from quire.adapters.prompt_request import PromptAdapterRequest
from quire.adapters.request import LoRARequest

AnyAdapterRequest = LoRARequest | PromptAdapterRequest

__all__ = [
    "AdapterModule", "AnyAdapterRequest", "LoRARequest", "PromptAdapterRequest", "as_arguments",
    "parse_modules", "parse_prompt_adapters",
]  # fmt: skip


def as_arguments(adapter: AnyAdapterRequest | None) -> dict[str, Any]:
    """The argument of an engine that takes an adapter of this kind."""
    if adapter is None:
        return {}
    if isinstance(adapter, LoRARequest):
        return {"lora_request": adapter}
    return {"prompt_adapter_request": adapter}
