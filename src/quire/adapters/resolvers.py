"""Resolvers: find an adapter by the name that a request gives as its model, under vLLM's names.

A server asks them for names that it does not know. They are registered by the process itself, by
installed packages (entry points of the group `quire.lora_resolvers`: a function without arguments
that returns a resolver), and by the environment variable VLLM_LORA_RESOLVER_CACHE_DIR.
"""

from __future__ import annotations

import asyncio
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Set
from importlib.metadata import entry_points
from pathlib import Path

from quire.adapters.request import LoRARequest
from quire.errors import ConfigError, quoted, reason
from quire.log import get_logger

logger = get_logger(__name__)

GROUP = "quire.lora_resolvers"
_FOLDER = "VLLM_LORA_RESOLVER_CACHE_DIR"
_MAX_CONFIG_BYTES = 1 << 20


class LoRAResolver(ABC):
    """Finds adapters, wherever they are kept. An implementation may copy files first."""

    @abstractmethod
    async def resolve_lora(self, base_model_name: str, lora_name: str) -> LoRARequest | None:
        """The adapter of this name for the base model. None: it is not known here."""


class _Registry:
    """The resolvers of this process, by name."""

    def __init__(self) -> None:
        self.resolvers: dict[str, LoRAResolver] = {}

    def get_supported_resolvers(self) -> Set[str]:
        """The names of all resolvers."""
        return self.resolvers.keys()

    def register_resolver(self, resolver_name: str, resolver: LoRAResolver) -> None:
        """Adds a resolver, or replaces one of the same name."""
        if resolver_name in self.resolvers:
            logger.warning(
                "LoRA resolver %s is already registered, and will be overwritten by the new "
                "resolver instance %s.", resolver_name, resolver,
            )  # fmt: skip
        self.resolvers[resolver_name] = resolver

    def get_resolver(self, resolver_name: str) -> LoRAResolver:
        """Raises KeyError for an unknown name."""
        if resolver_name not in self.resolvers:
            raise KeyError(
                f"LoRA resolver '{resolver_name}' not found. Available resolvers: "
                f"{[*self.resolvers]}"
            )
        return self.resolvers[resolver_name]


LoRAResolverRegistry = _Registry()


class FilesystemResolver(LoRAResolver):
    """Adapters in the folders of one folder, whose configuration names the base model. A name that
    leads out of the folder finds nothing."""

    def __init__(self, lora_cache_dir: str) -> None:
        self.lora_cache_dir = lora_cache_dir

    async def resolve_lora(self, base_model_name: str, lora_name: str) -> LoRARequest | None:
        """Looks at the files on a thread."""
        is_there = await asyncio.to_thread(self._has, base_model_name, lora_name)
        path = os.path.join(self.lora_cache_dir, lora_name)
        return LoRARequest(lora_name, 1, path) if is_there else None

    def _has(self, base_model_name: str, lora_name: str) -> bool:
        try:
            top = Path(self.lora_cache_dir).resolve()
            folder = (top / lora_name).resolve()
            if folder == top or not folder.is_relative_to(top):
                return False
            with (folder / "adapter_config.json").open("rb") as file:
                config = json.loads(file.read(_MAX_CONFIG_BYTES))
        except (OSError, ValueError, RuntimeError, RecursionError):
            return False
        if not isinstance(config, dict) or config.get("peft_type") != "LORA":
            return False
        return bool(config.get("base_model_name_or_path") == base_model_name)


def registered_resolvers() -> list[LoRAResolver]:
    """All resolvers of this process, after those of packages and of the environment are registered.
    Raises ConfigError for one that cannot be made."""
    folder = os.environ.get(_FOLDER)
    if folder:
        if not Path(folder).is_dir():
            raise ConfigError(
                f"{_FOLDER} must be set to a valid directory for Filesystem Resolver plugin to "
                f"function, got {quoted(folder)}"
            )
        LoRAResolverRegistry.register_resolver("Filesystem Resolver", FilesystemResolver(folder))
    for entry in entry_points(group=GROUP):
        try:
            resolver = entry.load()()
        except Exception as error:
            raise ConfigError(
                f"the entry point {entry.name!r} of {GROUP} must be a function that returns a "
                f"resolver: {reason(error)}"
            ) from error
        if not callable(getattr(resolver, "resolve_lora", None)):
            raise ConfigError(f"the entry point {entry.name!r} of {GROUP} must return a resolver")
        LoRAResolverRegistry.register_resolver(entry.name, resolver)
    return [*LoRAResolverRegistry.resolvers.values()]
