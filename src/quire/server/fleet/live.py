"""The models of a server with several: a context with a fleet, and `LiveModels` over it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from quire.config.engine_args import EngineArgs
from quire.errors import ConfigError, QuireError
from quire.frontend.observers.observer import RequestLogChoice
from quire.log import get_logger
from quire.planning.machine import available_memory
from quire.server.args import ServerArgs
from quire.server.context import ServerContext
from quire.server.fleet.catalog import CatalogEntry
from quire.server.fleet.fleet import Fleet
from quire.server.fleet.live_models import LiveModels, context_of_configs
from quire.server.fleet.loading import ModelLoader
from quire.server.fleet.member import Member, make_member, naming
from quire.server.http.problems import HttpError
from quire.server.served_adapters import served_modules
from quire.units import format_bytes

logger = get_logger(__name__)
_MOST_FOUND = 4
"""Models of folders that share the memory at the same time: a folder may have hundreds."""


def fleet_of(
    engine_args: EngineArgs,
    args: ServerArgs,
    catalog: Sequence[CatalogEntry],
    request_log: RequestLogChoice | None,
) -> tuple[ServerContext, LiveModels]:
    """The context of a server with several models. Raises QuireError."""
    if args.engine_mode == "thread":
        raise ConfigError(
            "engine_mode=thread must not be set with several models, each of which has a process"
        )
    memory = available_memory()
    budget = args.model_memory_bytes
    if budget is None:
        budget = int(memory.available_bytes * engine_args.gpu_memory_utilization)
    num_found = sum(entry.is_found for entry in catalog)
    share = budget // (len(catalog) - num_found + min(num_found, _MOST_FOUND))
    context = ServerContext(args)
    members = list[Member]()
    for entry in catalog:
        model = context.new_model(entry.names, entry.server)
        try:
            members.append(make_member(entry, model, share, budget))
        except QuireError as error:
            if not entry.is_found:
                raise
            logger.warning("%s is not served: %s", entry.names[0], error)
        else:
            context.models.append(model)
    if not members:
        raise ConfigError("no model in the folders of --models-dir can be served; see the log")
    configs = [member.config for member in members if member.config is not None]
    flags = context_of_configs(args, configs)
    context.has_profiler = flags.has_profiler
    context.has_kv_store = flags.has_kv_store
    context.has_adapters = flags.has_adapters
    for member in members:
        _prepare(member)
    logger.info(
        "%d models, %s of memory for those that are loaded", len(members), format_bytes(budget)
    )
    context.fleet = Fleet(
        members,
        budget,
        ModelLoader(args, request_log, "process"),
        max_waiting=args.max_waiting_loads,
        load_timeout_s=args.model_load_timeout,
    )
    if args.allow_model_changes:
        context.fleet.engine_args = engine_args
    return context, _Several(context, context.fleet)


def _prepare(member: Member) -> None:
    """Tells the model what is known before it is loaded, and the log what it needs."""
    model, entry, config = member.model, member.entry, member.config
    model.planned = config
    if config is None:
        logger.warning("%s cannot be loaded: %s", member.name, member.failure)
        return
    with naming(entry):
        for module in served_modules(entry.server, model.names, config):
            model.adapters.add(module)
    logger.info("%s: %s while it is loaded", member.name, format_bytes(member.num_bytes))


@dataclass(slots=True)
class _Several:
    """Several models, each loaded when it is needed."""

    context: ServerContext
    fleet: Fleet
    watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        for member in self.fleet.members:
            if member.entry.is_preloaded:
                with suppress(HttpError):  # it is in the log, and the state of the model
                    await self.fleet.load(member.model)
        self.context.is_started = True
        self.watching = self.context.keep(self.fleet.watch())

    def served_names(self) -> list[str]:
        return [member.name for member in self.fleet.members]

    def after_start(self) -> None:
        pass

    async def until(self, signalled: asyncio.Event) -> str | None:
        await signalled.wait()
        return None

    def close_templates(self) -> None:
        self.fleet.end_loads()
        for member in self.fleet.members:
            if member.model.chat is not None:
                member.model.chat.close()

    async def close(self) -> None:
        if self.watching is not None:
            self.watching.cancel()
        await self.fleet.close()
