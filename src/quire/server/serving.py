"""`serve`: runs a server, from binding its socket to its exit code.

    bind -> load, with /live answering -> ready -> drain -> stop

Called by `quire serve`, on the main thread, once per process.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Sequence
from logging import ERROR, INFO
from typing import TYPE_CHECKING, NoReturn

from quire.config.engine_args import EngineArgs
from quire.core.loop import SWITCH_INTERVAL_S
from quire.errors import ConfigError, QuireError, quoted
from quire.frontend.observers.observer import RequestLogChoice, request_log_choice
from quire.log import flush, get_logger, phase, process_age_s
from quire.planning.plan import build_engine_config
from quire.server.app import build_app
from quire.server.args import ServerArgs
from quire.server.connection.http_server import HttpServer
from quire.server.context import ServerContext
from quire.server.fleet.live_models import LiveModels, Outcome, one_model
from quire.server.http import listening
from quire.server.http.api_keys import load_api_keys
from quire.server.reply_formats import check_formats
from quire.server.reply_plugins import reply_plugins
from quire.system.at_exit import remove_all_scratch
from quire.system.free_memory import bound_free_memory
from quire.system.garbage import expect_crowds

if TYPE_CHECKING:
    from quire.server.fleet.catalog import CatalogEntry

logger = get_logger(__name__)

_DEATH_NOTICE_S = 3.0
"""Seconds for which a server with a dead engine answers with errors before it exits."""
_FLUSH_S = 2.0
_POLL_S = 0.01
"""Time between two looks whether requests are still being prepared."""


def serve(
    engine_args: EngineArgs, server_args: ServerArgs, catalog: Sequence[CatalogEntry] = ()
) -> int:
    """Serves until a signal, or until the engine dies. `catalog`: several models, which are loaded
    when they are needed. The exit code is 0 after a signal, 1 after a failure, whose cause is the
    last line of the log. Returns only if the server could not begin."""
    bound_free_memory()
    age_s = process_age_s()
    begin = time.perf_counter() - age_s
    logger.info("interpreter and imports: %.2f s", age_s)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    if server_args.uvicorn_log_level is not None:
        level = {"trace": "debug"}.get(server_args.uvicorn_log_level, server_args.uvicorn_log_level)
        get_logger("quire.server").setLevel(level.upper())
    try:
        keys = load_api_keys(server_args)
        listening.allow_open_files(server_args)
        listener = listening.listen(server_args)
        try:
            with phase(logger, "configuration"):
                _load_plugins(engine_args, server_args)
                request_log = request_log_choice(
                    engine_args, server_args.enable_log_outputs, server_args.max_log_len
                )
                context, live = _models(engine_args, server_args, catalog, request_log)
            with phase(logger, "application"):
                http = HttpServer(server_args, build_app(context, keys))
            return _run(_Server(context, live, http, listener, begin))
        finally:
            listener.close()
    except QuireError as error:
        logger.error("%s", error)
        return 1
    except KeyboardInterrupt:
        return 130


def _models(
    engine_args: EngineArgs,
    args: ServerArgs,
    catalog: Sequence[CatalogEntry],
    request_log: RequestLogChoice | None,
) -> tuple[ServerContext, LiveModels]:
    if catalog:
        from quire.server.fleet.live import fleet_of  # rarely used

        context, live = fleet_of(engine_args, args, catalog, request_log)
        if not context.knows(args.transcription_model):
            raise ConfigError(
                f"transcription_model={quoted(args.transcription_model)} must be one of the "
                f"models: {', '.join(context.names)}"
            )
        return context, live
    config = build_engine_config(engine_args, "server")
    check_formats(args, config)
    return one_model(args, config, request_log)


def _load_plugins(engine_args: EngineArgs, args: ServerArgs) -> None:
    if (plugins := reply_plugins(args)) is not None:
        from quire.parsers.detection.names import FormatChoice

        name = engine_args.reasoning_parser
        name = name or (engine_args.structured_outputs_config or {}).get("reasoning_parser", "")
        plugins.load(
            args.tool_parser_plugin, args.reasoning_parser_plugin, args.tool_call_parser, name
        )
        FormatChoice.of(args.tool_call_parser, name)


def _run(server: _Server) -> int:
    try:
        import uvloop

        loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    except ImportError:
        loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(server.run())
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


class _Server:
    """One running server. Owned by its event loop, on the main thread."""

    def __init__(
        self,
        context: ServerContext,
        live: LiveModels,
        http: HttpServer,
        listener: listening.Listener,
        begin: float,
    ) -> None:
        self._args = context.args
        self._context = context
        self._models = live
        self._http = http
        self._listener = listener
        self._begin = begin
        self._is_loading = True
        self._num_signals = 0
        self._signalled: asyncio.Event
        self._hurried: asyncio.Event

    async def run(self) -> NoReturn:
        """Runs the server, and ends the process: 0 after a signal, 1 after a failure."""
        self._signalled, self._hurried = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal, number)
        serving = loop.create_task(self._http.serve(sockets=[self._listener.socket]))
        living = loop.create_task(self._live())
        await asyncio.wait({serving, living}, return_when=asyncio.FIRST_COMPLETED)
        if serving.done() and (error := serving.exception()) is not None:
            logger.error("the server cannot take connections: %s", error)
            self._listener.close()
            _exit_now(1)  # the model may still be loading
        try:
            outcome = await living
        except QuireError as error:
            outcome = Outcome(1, str(error))
        except Exception as error:  # as when the system has no memory, or no more threads
            logger.error("the server failed unexpectedly", exc_info=error)
            outcome = Outcome(1, f"{type(error).__name__}: {error}")
        await self._stop(serving)
        logger.log(ERROR if outcome.exit_code else INFO, "%s", outcome.reason)
        self._listener.close()
        _exit_now(outcome.exit_code)  # a thread may still load one of several models

    async def _live(self) -> Outcome:
        with phase(logger, "model"):
            await self._models.start()
        self._is_loading = False
        expect_crowds()
        logger.info(
            "Serving %s at %s, ready after %.2f s",
            _some(self._models.served_names()),
            self._listener.url,
            time.perf_counter() - self._begin,
        )
        self._models.after_start()
        death = await self._models.until(self._signalled)
        if death is not None:
            await asyncio.sleep(_DEATH_NOTICE_S)
            return Outcome(1, death)
        self._context.is_draining = True
        return await self._drain()

    async def _drain(self) -> Outcome:
        """Waits until the running requests end, the time limit passes, or a second signal comes."""
        context, seconds = self._context, self._args.shutdown_timeout
        logger.info(
            "Shutting down: %d requests in flight have %g s (a second signal ends them now)",
            context.num_generating + context.num_preparing,
            seconds,
        )
        loop = asyncio.get_running_loop()
        end = time.monotonic() + seconds
        hurried = loop.create_task(self._hurried.wait())
        while context.num_preparing and not hurried.done() and time.monotonic() < end:
            await asyncio.wait({hurried}, timeout=_POLL_S)
        engines = [model.engine for model in context.models if model.engine is not None]
        left_s = max(0.0, end - time.monotonic())
        drains = [loop.create_task(engine.drain(left_s)) for engine in engines]
        pending: set[asyncio.Task[bool]] = set(drains)
        while pending and not hurried.done():
            done, _ = await asyncio.wait({*pending, hurried}, return_when=asyncio.FIRST_COMPLETED)
            pending -= done
        is_complete = not pending and all(drain.result() for drain in drains)
        for task in (*drains, hurried):
            task.cancel()
        if not is_complete:
            for engine in engines:
                await engine.abort_all()
        return Outcome(0, "Shut down." if is_complete else "Shut down; some requests were aborted.")

    async def _stop(self, serving: asyncio.Task[None]) -> None:
        self._context.is_stopping = True
        self._models.close_templates()
        end = time.monotonic() + _FLUSH_S
        while self._context.num_generating and time.monotonic() < end:
            await asyncio.sleep(0.01)  # replies that are complete are being written
        self._http.should_exit = True
        await serving
        self._context.pool.close()
        await self._models.close()

    def _on_signal(self, number: int) -> None:
        self._num_signals += 1
        if self._is_loading:
            logger.info("Stopped while loading.")
            self._listener.close()
            _exit_now(130 if number == signal.SIGINT else 0)
        self._signalled.set()
        if self._num_signals > 1:
            self._hurried.set()


def _exit_now(code: int) -> NoReturn:
    """Ends the process without waiting for its threads; the engine's process ends with it."""
    remove_all_scratch()
    flush()
    sys.stdout.flush()
    os._exit(code)


_MAX_NAMES = 8


def _some(names: list[str]) -> str:
    """The first names, for the log."""
    rest = len(names) - _MAX_NAMES
    return ", ".join(names[:_MAX_NAMES]) + (f" and {rest} others" if rest > 0 else "")
