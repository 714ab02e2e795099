"""A fleet over a fake loader: engines over the fake core, loads that can wait or fail."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fake_core import FakeCore
from fake_engine import fake_config, fake_engine

from quire.config import EngineConfig
from quire.config.engine_args import EngineArgs
from quire.errors import ConfigError
from quire.frontend.online.async_llm import AsyncLLM
from quire.parsers.format import ReplyFormat
from quire.server import ServerArgs
from quire.server.context import ServerContext
from quire.server.fleet.catalog import CatalogEntry
from quire.server.fleet.fleet import Fleet
from quire.server.fleet.member import Member
from quire.server.served_model import LoadedParts, ServedModel

BUDGET = 100


class FakeLoader:
    """Counts loads and unloads. `gate`: loads wait for it, and unloads for `unload_gate`;
    `failures`: messages by name."""

    def __init__(self, tokenizer: Path) -> None:
        self.loads: list[str] = []
        self.unloads: list[str] = []
        self.gate: asyncio.Event | None = None
        self.unload_gate: asyncio.Event | None = None
        self.failures: dict[str, str] = {}
        self.chat: Any = None
        self._tokenizer = tokenizer
        self._names: dict[int, str] = {}

    async def load(
        self, model: ServedModel, config: EngineConfig, modules: Sequence[Any]
    ) -> AsyncLLM:
        del config, modules
        name = model.names[0]
        self.loads.append(name)
        if self.gate is not None:
            await self.gate.wait()
        if name in self.failures:
            raise ConfigError(self.failures[name])
        model.engine = fake_engine(self._tokenizer, FakeCore)
        model.chat, model.found_format = self.chat, ReplyFormat()
        self._names[id(model.engine)] = name
        return model.engine

    async def unload(self, parts: LoadedParts) -> None:
        assert parts.engine is not None
        assert not parts.engine.requests, "a model with requests was unloaded"
        self.unloads.append(self._names.pop(id(parts.engine)))
        if self.unload_gate is not None:
            await self.unload_gate.wait()
        await asyncio.to_thread(parts.engine.shutdown)


def make_fleet(
    tokenizer: Path,
    sizes: dict[str, int],
    *,
    budget: int = BUDGET,
    max_waiting: int = 8,
    load_timeout_s: float = 20.0,
    **options: Any,
) -> tuple[ServerContext, FakeLoader]:
    """A context with a fleet of models of these sizes in bytes; none is loaded."""  # fmt: skip
    context = ServerContext(ServerArgs(allowed_hosts=("quire",), **options))
    members, loader = [], FakeLoader(tokenizer)
    for name, size in sizes.items():
        entry = CatalogEntry((name,), EngineArgs(), context.args, None)
        model = context.add_model((name,))
        model.planned = fake_config(name, tokenizer)
        members.append(Member(entry, model, model.planned, size))
    context.fleet = Fleet(
        members, budget, loader, max_waiting=max_waiting, load_timeout_s=load_timeout_s  # type: ignore[arg-type]
    )  # fmt: skip
    context.is_started = True
    return context, loader
