"""`ModelLoader`: loads a model's engine and chat templates, and closes them.

Called by `serve` for its one model, and by the fleet for each of several.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from quire.adapters import AdapterModule
from quire.chat.async_renderer import AsyncChatRenderer, RenderBounds
from quire.chat.renderer_process import CLOCK_FACTOR
from quire.chat.templates import ChatTemplates
from quire.config import EngineConfig
from quire.core.client import EngineCoreClient
from quire.core.hosts import EngineMode
from quire.core.parallel.restarts import DEFAULT_RESTARTS
from quire.frontend.observers.observer import RequestLogChoice
from quire.server.args import ServerArgs
from quire.server.reply_plugins import reply_plugins
from quire.server.served_model import LoadedParts, ServedModel

if TYPE_CHECKING:
    from quire.frontend.online.async_llm import AsyncLLM
    from quire.tokenizer import Tokenizer

_KEPT = 8


@dataclass(frozen=True, slots=True)
class ModelLoader:
    """Loads models for this server."""

    args: ServerArgs
    request_log: RequestLogChoice | None
    engine_mode: EngineMode
    client: EngineCoreClient | None = None
    """Engines that are elsewhere; None: one is started here."""
    kept_tokenizers: deque[Tokenizer] = field(default_factory=lambda: deque(maxlen=_KEPT))
    """Tokenizers of the models unloaded last. To read one again would stop the event loop for a
    tenth of a second or more, because the library does not free the interpreter's lock
    meanwhile."""

    async def load(
        self, model: ServedModel, config: EngineConfig, modules: Sequence[AdapterModule]
    ) -> AsyncLLM:
        """Loads a model with its adapters, on a thread: the event loop answers meanwhile. Raises
        QuireError."""
        parts = await asyncio.to_thread(self.build, config)
        engine = parts.engine
        assert engine is not None
        engine.bind()
        try:
            await model.adapters.load_all(engine, modules)
            _check_plugins(model.args, engine)
        except BaseException:
            await self.unload(parts)
            raise
        model.chat, model.engine = parts.chat, engine
        if parts.chat is not None:
            parts.chat.start()
        return engine

    async def unload(self, parts: LoadedParts) -> None:
        """Closes what a model had; returns when its memory is free."""
        if parts.chat is not None:
            parts.chat.close()
        if parts.engine is not None:
            tokenizer = parts.engine.tokenizer
            if tokenizer is not None and tokenizer not in self.kept_tokenizers:
                self.kept_tokenizers.append(tokenizer)
            await asyncio.to_thread(parts.engine.shutdown)

    def build(self, config: EngineConfig) -> LoadedParts:
        """Loads an engine and its chat templates, on the caller's thread. Raises QuireError."""
        from quire.frontend.online.async_llm import AsyncLLM

        args = self.args
        engine = AsyncLLM(
            config,
            client=self.client,
            engine_mode=self.engine_mode,
            step_timeout_s=args.step_timeout,
            max_engine_restarts=_max_restarts(args, config),
            request_log=self.request_log,
        )
        if engine.tokenizer is None:
            return LoadedParts(engine, None)
        templates = ChatTemplates.of_model(config.model, engine.tokenizer.roles)
        seconds, num_waiting = args.template_timeout, args.max_waiting_chats
        bounds = RenderBounds(seconds, num_waiting, CLOCK_FACTOR * seconds)
        return LoadedParts(engine, AsyncChatRenderer(templates, bounds))


def _max_restarts(args: ServerArgs, config: EngineConfig) -> int:
    if args.max_engine_restarts is not None:
        return args.max_engine_restarts
    return DEFAULT_RESTARTS if config.parallel.world_size_across_dp > 1 else 0


def _check_plugins(args: ServerArgs, engine: AsyncLLM) -> None:
    if (plugins := reply_plugins(args)) is not None:
        name = engine.config.structured_outputs.reasoning_parser
        plugins.check(args.tool_call_parser, name, engine.get_tokenizer())
