"""What all connections of a server share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.types import ASGIApp

from quire.server.args import ServerArgs
from quire.server.connection.limits.seats import Seats
from quire.server.connection.limits.turns import Turns

if TYPE_CHECKING:
    from uvicorn.server import ServerState


@dataclass(frozen=True, slots=True)
class Front:
    """The application, the bounds, and what is counted over all connections."""

    app: ASGIApp
    args: ServerArgs
    seats: Seats
    turns: Turns
    read_buffer: memoryview
    """What a client has sent is here for a moment, before it is parsed or copied."""
    state: ServerState
    """uvicorn's: its open connections and running requests, for which it waits at the end."""
