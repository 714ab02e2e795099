"""State that all connections of a server share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.types import ASGIApp

from quire.server.args import ServerArgs
from quire.server.connection.limits.connection_slots import ConnectionSlots
from quire.server.connection.limits.work_scheduler import WorkScheduler
from quire.system.turn_queue import TurnQueue

if TYPE_CHECKING:
    from uvicorn.server import ServerState


@dataclass(frozen=True, slots=True)
class SharedState:
    """The application, the options, and the limits over all connections."""

    app: ASGIApp
    args: ServerArgs
    slots: ConnectionSlots
    work_scheduler: WorkScheduler
    connects: TurnQueue
    """Creates connections from sockets, a few in each turn of the event loop."""
    starts: TurnQueue
    """Calls the application, a few times in each turn of the event loop. Requests for health and
    readiness do not wait here."""
    read_buffer: memoryview
    """Received bytes, until they are copied in the same callback."""
    server_state: ServerState
    """uvicorn's record of open connections and running requests; it waits for them at the end."""
