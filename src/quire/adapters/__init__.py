"""Names of adapters: the fields of requests, and the adapters of a server's options."""

from __future__ import annotations

from typing import Any

from quire.adapters.modules import AdapterModule, parse_modules, parse_prompt_adapters
from quire.adapters.request import AnyAdapterRequest, LoRARequest, PromptAdapterRequest

__all__ = [
    "AdapterModule", "AnyAdapterRequest", "LoRARequest", "PromptAdapterRequest", "by_kind",
    "parse_modules", "parse_prompt_adapters",
]  # fmt: skip


def by_kind(adapter: AnyAdapterRequest | None) -> dict[str, Any]:
    """The field of a request's options that takes an adapter of this kind, with the adapter."""
    if adapter is None:
        return {}
    return {"lora" if isinstance(adapter, LoRARequest) else "prompt_adapter": adapter}
