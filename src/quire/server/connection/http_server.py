"""`HttpServer`: uvicorn's server with connections of our own, and the TLS options."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from quire.errors import ConfigError
from quire.log import get_logger
from quire.server.args import ServerArgs
from quire.server.connection.acceptor import Acceptor
from quire.server.connection.shared_state import ConnectionSlots, SharedState, WorkScheduler
from quire.system.free_memory import release_free_memory
from quire.system.turn_queue import TurnQueue
from quire.units import KiB

logger = get_logger(__name__)


class CertificateRefresh:
    """Reloads certificates when their files have changed; open connections keep
    theirs. Owned by the event loop."""

    def __init__(self, args: ServerArgs, context: ssl.SSLContext) -> None:
        self._args = args
        self._context = context
        self._seen = self._state()

    def check(self) -> None:
        """Looks at the files. Files that do not match, for example while they are being replaced,
        are reported in the log and change nothing."""
        state = self._state()
        if state == self._seen:
            return
        self._seen = state
        try:
            _load_files(self._args, self._context)
        except OSError as error:
            logger.warning("the new TLS files cannot be used, the old ones stay: %s", error)
        else:
            logger.info("the TLS files were read again")

    def _state(self) -> list[tuple[int, int, int] | None]:
        paths = (self._args.ssl_keyfile, self._args.ssl_certfile, self._args.ssl_ca_certs)
        return [None if path is None else _state_of(path) for path in paths]


def _state_of(path: str) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _load_files(args: ServerArgs, context: ssl.SSLContext) -> None:
    """Raises OSError, and leaves the context as it was if the pair does not fit."""
    assert args.ssl_certfile is not None
    trial = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for one in (trial, context):
        one.load_cert_chain(args.ssl_certfile, args.ssl_keyfile)
        if args.ssl_ca_certs is not None:
            one.load_verify_locations(args.ssl_ca_certs)


def tls_options(args: ServerArgs) -> dict[str, Any]:
    """Arguments of asyncio's `connect_accepted_socket`; empty without TLS. Raises ConfigError for
    files that cannot be used."""
    if args.ssl_certfile is None:
        return {}
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        _load_files(args, context)
        if args.ssl_ca_certs is not None:
            context.verify_mode = ssl.CERT_REQUIRED
        if args.ssl_cert_reqs is not None:
            context.verify_mode = ssl.VerifyMode(int(args.ssl_cert_reqs))
        if args.ssl_ciphers is not None:
            context.set_ciphers(args.ssl_ciphers)
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(f"the TLS files cannot be used: {error}") from None
    context.set_alpn_protocols(["http/1.1"])
    options: dict[str, Any] = {"ssl": context, "ssl_handshake_timeout": args.header_timeout}
    if sys.version_info >= (3, 11):
        options["ssl_shutdown_timeout"] = args.linger_timeout
    return options


_CLOSE_S = 5
_REFRESH_TICKS = 10
"""Ticks of uvicorn, of a tenth of a second, between two looks at the TLS files."""
_AT_ONCE = 8
"""Connections made, and calls of the application, in one turn of the event loop."""
_MAX_READ_BYTES = 64 * KiB
"""Most bytes read from a connection at once."""


class HttpServer(uvicorn.Server):
    """uvicorn's server without its signal handlers and its HTTP protocol."""

    def __init__(self, args: ServerArgs, app: ASGIApp) -> None:
        """Raises ConfigError for TLS files that cannot be used."""
        _adopt_uvicorn_logs()
        self._idle_memory = IdleMemory()
        self._tls_options = tls_options(args)
        self._refresh: CertificateRefresh | None = None
        if args.enable_ssl_refresh and self._tls_options:
            self._refresh = CertificateRefresh(args, self._tls_options["ssl"])
        config = uvicorn.Config(
            app,
            http=asyncio.Protocol,  # not used: an Acceptor makes the connections
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=_CLOSE_S,
        )
        super().__init__(config)
        self._shared = SharedState(
            app,
            args,
            ConnectionSlots(
                args.max_connections, args.reserved_connections, is_tls=bool(self._tls_options)
            ),
            WorkScheduler(),
            TurnQueue(_AT_ONCE),
            TurnQueue(_AT_ONCE),
            memoryview(bytearray(_MAX_READ_BYTES)),
            self.server_state,
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def on_tick(self, counter: int) -> bool:
        """Called by uvicorn ten times a second; True ends the server."""
        state = self.server_state
        num_events = state.total_requests + self._shared.slots.num_acquired
        self._idle_memory.check(num_events, is_idle=not state.tasks)
        if self._refresh is not None and counter % _REFRESH_TICKS == 0:
            self._refresh.check()
        return await super().on_tick(counter)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts to accept connections."""
        acceptors = [Acceptor(self._shared, one, self._tls_options) for one in sockets or []]
        self.servers = acceptors  # type: ignore[assignment]
        self.started = True


def _adopt_uvicorn_logs() -> None:
    """Logs uvicorn's errors by Quire's handlers; its warnings about clients are not logged."""
    uvicorn_logger, quire_logger = logging.getLogger("uvicorn"), logging.getLogger("quire")
    uvicorn_logger.handlers = quire_logger.handlers
    uvicorn_logger.propagate = not quire_logger.handlers
    uvicorn_logger.setLevel(logging.ERROR)


_INTERVAL_S = 5.0


class IdleMemory:
    """Releases the memory of connections and small requests while the server is idle."""

    def __init__(self) -> None:
        self._num_events = 0
        self._released_at = time.monotonic()

    def check(self, num_events: int, is_idle: bool) -> None:
        """Releases memory if the server is idle and was not since the last release.

        `num_events`: requests and connections since the start.
        """
        now = time.monotonic()
        is_due = num_events != self._num_events and now - self._released_at >= _INTERVAL_S
        if is_idle and is_due:
            self._num_events, self._released_at = num_events, now
            release_free_memory()
