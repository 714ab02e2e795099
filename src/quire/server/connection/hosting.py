"""uvicorn, with connections of our own: it accepts them, keeps the date, and ends in order."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from quire.server.args import ServerArgs
from quire.server.connection.door import Door, tls_context
from quire.server.connection.front import Front
from quire.server.connection.limits.seats import Seats
from quire.server.connection.limits.turns import Turns
from quire.units import KiB

_CLOSE_S = 5
_MAX_READ_BYTES = 64 * KiB
"""Read from one connection at once."""


class HttpServer(uvicorn.Server):
    """uvicorn without its own ideas about signals."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def build_http_server(args: ServerArgs, app: ASGIApp) -> HttpServer:
    """A server that serves sockets with `serve(sockets=...)`. Raises ConfigError for TLS files
    that cannot be used."""
    _adopt_uvicorn_logs()
    tls = tls_context(args)

    def make_door(**_: object) -> Door:
        return Door(front, tls)

    config = uvicorn.Config(
        app,
        http=make_door,  # type: ignore[arg-type]
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=_CLOSE_S,
    )
    server = HttpServer(config)
    seats = Seats(args.max_connections, args.reserved_connections)
    read_buffer = memoryview(bytearray(_MAX_READ_BYTES))
    front = Front(app, args, seats, Turns(), read_buffer, server.server_state)
    return server


def _adopt_uvicorn_logs() -> None:
    """Its errors look like ours; what clients do wrong is no news."""
    theirs, ours = logging.getLogger("uvicorn"), logging.getLogger("quire")
    theirs.handlers, theirs.propagate = ours.handlers, not ours.handlers
    theirs.setLevel(logging.ERROR)
