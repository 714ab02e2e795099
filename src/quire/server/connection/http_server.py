"""`HttpServer`: uvicorn's server with connections of our own."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from quire.server.args import ServerArgs
from quire.server.connection.acceptor import Acceptor
from quire.server.connection.shared_state import ConnectionSlots, SharedState, WorkScheduler
from quire.server.connection.tls import CertificateRefresh, tls_options
from quire.system.free_memory import release_free_memory
from quire.system.turn_queue import TurnQueue
from quire.units import KiB

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
