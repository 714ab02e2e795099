"""`LiveModels`: the models of a running server, from their load to their end; and those of a server
with one model, which is loaded at the start and whose death ends the server.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from quire import env
from quire.adapters import AdapterModule
from quire.config import EngineConfig
from quire.errors import EngineDeadError, QuireError
from quire.frontend.observers.observer import RequestLogChoice
from quire.log import get_logger
from quire.server.args import ServerArgs
from quire.server.context import ServerContext
from quire.server.served_adapters import served_modules
from quire.server.served_model import ServedModel

if TYPE_CHECKING:
    from quire.server.fleet.loading import ModelLoader

logger = get_logger(__name__)


@dataclass(slots=True)
class Outcome:
    """Why the server ends."""

    exit_code: int
    reason: str


class LiveModels(Protocol):
    """The operations of `serve` on its models, in this order."""

    async def start(self) -> None:
        """Loads what is loaded at the start. Raises QuireError."""

    def served_names(self) -> list[str]:
        """Names for the log."""

    def after_start(self) -> None:
        """Begins what need not be done before the first request."""

    async def until(self, signalled: asyncio.Event) -> str | None:
        """Waits for the signal; returns why the server must end, if that comes first."""

    def close_templates(self) -> None:
        """Ends the processes that render chat templates, and what requests wait for besides."""

    async def close(self) -> None:
        """Unloads everything."""


def one_model(
    args: ServerArgs, config: EngineConfig, request_log: RequestLogChoice | None
) -> tuple[ServerContext, LiveModels]:
    """The context of a server with one model. Raises ConfigError."""
    from quire.server.fleet.loading import ModelLoader

    context = context_of_configs(args, [config])
    names = config.model.served_model_name
    modules = served_modules(args, names, config)
    loader = ModelLoader(args, request_log, args.engine_mode)
    return context, _OneModel(context, context.add_model(names), config, modules, loader)


def context_of_configs(args: ServerArgs, configs: Sequence[EngineConfig]) -> ServerContext:
    """A context without models yet, for engines of these configurations."""
    has_adapters = env.allows_loading_adapters() and any(one.lora is not None for one in configs)
    if has_adapters and not args.lora_folders:
        logger.warning(
            "callers may load adapters from any folder; name folders with --lora-folders"
        )
    has_profiler = any(one.observability.profiler is not None for one in configs)
    has_kv_store = any(one.kv_store is not None for one in configs)
    return ServerContext(args, has_profiler, has_kv_store, has_adapters)


@dataclass(slots=True)
class _OneModel:
    """The only model of a server."""

    context: ServerContext
    model: ServedModel
    config: EngineConfig
    modules: list[AdapterModule]
    loader: ModelLoader

    async def start(self) -> None:
        await self.loader.load(self.model, self.config, self.modules)

    def served_names(self) -> list[str]:
        return list(self.model.names)

    def after_start(self) -> None:
        if self.model.chat is not None and self.config.model.pooling is None:
            self.context.keep(self._find_reply_format())

    async def until(self, signalled: asyncio.Event) -> str | None:
        death: asyncio.Future[EngineDeadError] = asyncio.get_running_loop().create_future()
        self.model.loaded_engine().call_when_dead(death.set_result)
        signal = asyncio.ensure_future(signalled.wait())
        both: set[asyncio.Future[Any]] = {death, signal}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if signal.done():
            return None
        signal.cancel()
        logger.error("%s", death.result())
        return str(death.result())

    def close_templates(self) -> None:
        if self.model.chat is not None:
            self.model.chat.close()

    async def close(self) -> None:
        if self.model.engine is not None:
            await asyncio.to_thread(self.model.engine.shutdown)

    async def _find_reply_format(self) -> None:
        """So that the first chat need not wait for it. Fails in silence: that chat tries again."""
        with suppress(QuireError):
            await self.model.reply_format()
        gc.collect()
        gc.freeze()  # what was imported for it
