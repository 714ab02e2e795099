"""What all connections of a server share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.types import ASGIApp

from quire.server.args import ServerArgs
from quire.server.http.seats import Seats

if TYPE_CHECKING:
    from uvicorn.server import ServerState


@dataclass(frozen=True, slots=True)
class Front:
    """The application, the bounds, and what is counted over all connections."""

    app: ASGIApp
    args: ServerArgs
    seats: Seats
    state: ServerState
    """uvicorn's: its open connections and running requests, for which it waits at the end."""
