"""uvicorn, with connections of our own: it keeps the date, and ends in order."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from quire.server.args import ServerArgs
from quire.server.connection.acceptor import Acceptor
from quire.server.connection.front import Front
from quire.server.connection.limits.seats import Seats
from quire.server.connection.limits.turns import Turns
from quire.server.connection.tls import tls_options
from quire.server.connection.trimmer import MemoryTrimmer
from quire.units import KiB

_CLOSE_S = 5
_MAX_READ_BYTES = 64 * KiB
"""Read from one connection at once."""


class HttpServer(uvicorn.Server):
    """uvicorn without its own ideas about signals and connections."""

    def __init__(self, args: ServerArgs, app: ASGIApp) -> None:
        """Raises ConfigError for TLS files that cannot be used."""
        _adopt_uvicorn_logs()
        self._trimmer = MemoryTrimmer()
        self._tls_options = tls_options(args)
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
        seats = Seats(args.max_connections, args.reserved_connections)
        read_buffer = memoryview(bytearray(_MAX_READ_BYTES))
        self._front = Front(app, args, seats, Turns(), read_buffer, self.server_state)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def on_tick(self, counter: int) -> bool:
        """Called by uvicorn ten times a second; True ends the server."""
        state = self.server_state
        mark = state.total_requests + self._front.seats.num_given
        self._trimmer.look(mark, is_idle=not state.tasks)
        return await super().on_tick(counter)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begins to accept connections."""
        acceptors = [Acceptor(self._front, one, self._tls_options) for one in sockets or []]
        self.servers = acceptors  # type: ignore[assignment]
        self.started = True


def _adopt_uvicorn_logs() -> None:
    """Its errors look like ours; what clients do wrong is no news."""
    theirs, ours = logging.getLogger("uvicorn"), logging.getLogger("quire")
    theirs.handlers, theirs.propagate = ours.handlers, not ours.handlers
    theirs.setLevel(logging.ERROR)
