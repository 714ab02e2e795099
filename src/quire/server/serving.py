"""`serve`: runs a server, from binding its socket to its exit code.

    bind -> load, with /live answering -> ready -> drain -> stop

Called by `quire serve`, on the main thread, once per process.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from quire.adapters import parse_modules
from quire.config import EngineConfig
from quire.config.engine_args import EngineArgs
from quire.core.loop import SWITCH_INTERVAL_S
from quire.errors import QuireError
from quire.frontend.observers.request_log import RequestLogChoice, request_log_choice
from quire.frontend.online.async_llm import AsyncLLM
from quire.log import flush, get_logger, phase, process_age_s
from quire.planning.plan import build_engine_config
from quire.server.app import build_app
from quire.server.args import ServerArgs
from quire.server.connection.http_server import HttpServer
from quire.server.http import listening
from quire.server.http.auth import load_api_keys
from quire.server.loading import load_engine, make_context
from quire.server.served_adapters import check_modules
from quire.server.served_model import ServedModel, check_formats
from quire.system.free_memory import bound_free_memory
from quire.system.garbage import expect_crowds

logger = get_logger(__name__)

_WATCH_INTERVAL_S = 0.2
_DEATH_NOTICE_S = 3.0
"""How long a server with a dead engine answers with errors before it exits."""
_FLUSH_S = 2.0


def serve(engine_args: EngineArgs, server_args: ServerArgs) -> int:
    """Serves until a signal, or until the engine dies. Returns the exit code: 0 after a signal, 1
    after a failure, whose cause is the last line of the log."""
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
                config = build_engine_config(engine_args, "server")
                check_formats(server_args, config)
            with phase(logger, "application"):
                request_log = request_log_choice(
                    engine_args, server_args.enable_log_outputs, server_args.max_log_len
                )
                server = _Server(server_args, config, keys, listener, request_log, begin)
            return _run(server)
        finally:
            listener.close()
    except QuireError as error:
        logger.error("%s", error)
        return 1
    except KeyboardInterrupt:
        return 130


def _load_plugins(engine_args: EngineArgs, args: ServerArgs) -> None:
    if args.tool_parser_plugin or args.reasoning_parser_plugin:
        from quire.parsers.detection.names import FormatChoice
        from quire.server.plugins.formats import load_plugins

        name = engine_args.reasoning_parser
        name = name or (engine_args.structured_outputs_config or {}).get("reasoning_parser", "")
        load_plugins(
            args.tool_parser_plugin, args.reasoning_parser_plugin, args.tool_call_parser, name
        )
        FormatChoice.of(args.tool_call_parser, name)


def _check_plugins(model: ServedModel, engine: AsyncLLM) -> None:
    args = model.args
    if args.tool_parser_plugin or args.reasoning_parser_plugin:
        from quire.server.plugins.formats import check_plugins

        name = model.config.structured_outputs.reasoning_parser
        check_plugins(args.tool_call_parser, name, engine.get_tokenizer())


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


@dataclass(slots=True)
class _Outcome:
    """Why the server ends."""

    exit_code: int
    reason: str


class _Server:
    """One running server. Owned by its event loop, on the main thread."""

    def __init__(
        self,
        args: ServerArgs,
        config: EngineConfig,
        keys: tuple[str, ...],
        listener: listening.Listener,
        request_log: RequestLogChoice | None,
        begin: float,
    ) -> None:
        self._args = args
        self._config = config
        self._listener = listener
        self._request_log = request_log
        self._begin = begin
        self._context = make_context(args, config)
        self._lora_modules = parse_modules(args.lora_modules)
        names = config.model.served_model_name
        check_modules(self._lora_modules, names, is_on=config.lora is not None)
        self._model = self._context.model
        self._http = HttpServer(args, build_app(self._context, keys))
        self._num_signals = 0
        self._signalled: asyncio.Event
        self._hurried: asyncio.Event

    async def run(self) -> int:
        """Runs the server; returns the exit code."""
        self._signalled, self._hurried = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal, number)
        serving = loop.create_task(self._http.serve(sockets=[self._listener.socket]))
        try:
            outcome = await self._live()
        except QuireError as error:
            outcome = _Outcome(1, str(error))
        await self._stop(serving)
        if outcome.exit_code:
            logger.error("%s", outcome.reason)
            _exit_now(outcome.exit_code)
        logger.info("%s", outcome.reason)
        return 0

    async def _live(self) -> _Outcome:
        with phase(logger, "model"):
            engine = await self._load()
        await self._model.adapters.load_all(engine, self._lora_modules)
        self._model.engine = engine
        _check_plugins(self._model, engine)
        expect_crowds()
        logger.info(
            "Serving %s at %s, ready after %.2f s",
            ", ".join(self._model.names),
            self._listener.url,
            time.perf_counter() - self._begin,
        )
        if self._model.chat is not None:
            self._model.chat.start()
            self._context.keep(self._find_reply_format())
        if await self._until_signal_or_death(engine):
            await asyncio.sleep(_DEATH_NOTICE_S)
            return _Outcome(1, str(engine.dead_error))
        self._context.is_draining = True
        return await self._drain(engine)

    async def _find_reply_format(self) -> None:
        """So that the first chat need not wait for it. Fails in silence: that chat tries again."""
        with suppress(QuireError):
            await self._model.reply_format()
        gc.collect()
        gc.freeze()  # what was imported for it

    async def _load(self) -> AsyncLLM:
        """Loads on a thread, so that /live answers and signals work during it."""
        return await asyncio.to_thread(load_engine, self._config, self._context, self._request_log)

    async def _until_signal_or_death(self, engine: AsyncLLM) -> bool:
        """True if the engine died."""
        while not self._signalled.is_set():
            if engine.errored:
                logger.error("%s", engine.dead_error)
                return True
            try:
                await asyncio.wait_for(self._signalled.wait(), _WATCH_INTERVAL_S)
            except asyncio.TimeoutError:
                continue
        return False

    async def _drain(self, engine: AsyncLLM) -> _Outcome:
        """Waits until the running requests end, the time limit passes, or a second signal comes."""
        logger.info(
            "Shutting down: %d requests in flight have %g s (a second signal ends them now)",
            self._context.num_generating,
            self._args.shutdown_timeout,
        )
        loop = asyncio.get_running_loop()
        draining = loop.create_task(engine.drain(self._args.shutdown_timeout))
        hurried = loop.create_task(self._hurried.wait())
        await asyncio.wait({draining, hurried}, return_when=asyncio.FIRST_COMPLETED)
        is_complete = draining.done() and draining.result()
        for task in (draining, hurried):
            task.cancel()
        if not is_complete:
            await engine.abort_all()
        return _Outcome(
            0, "Shut down." if is_complete else "Shut down; some requests were aborted."
        )

    async def _stop(self, serving: asyncio.Task[None]) -> None:
        self._context.is_stopping = True
        if self._model.chat is not None:
            self._model.chat.close()
        end = time.monotonic() + _FLUSH_S
        while self._context.num_generating and time.monotonic() < end:
            await asyncio.sleep(0.01)  # replies that are complete are being written
        self._http.should_exit = True
        await serving
        self._context.pool.close()
        if self._model.engine is not None:
            await asyncio.to_thread(self._model.engine.shutdown)

    def _on_signal(self, number: int) -> None:
        self._num_signals += 1
        if self._model.engine is None:
            logger.info("Stopped while loading.")
            self._listener.close()
            _exit_now(130 if number == signal.SIGINT else 0)
        self._signalled.set()
        if self._num_signals > 1:
            self._hurried.set()


def _exit_now(code: int) -> NoReturn:
    """Ends the process without waiting for its threads; the engine's process ends with it."""
    flush()
    sys.stdout.flush()
    os._exit(code)
