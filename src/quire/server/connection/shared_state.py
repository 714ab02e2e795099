"""What all connections of a server share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.types import ASGIApp

from quire.server.args import ServerArgs
from quire.server.connection.limits.connection_slots import ConnectionSlots
from quire.server.connection.limits.work_scheduler import WorkScheduler

if TYPE_CHECKING:
    from uvicorn.server import ServerState


@dataclass(frozen=True, slots=True)
class SharedState:
    """The application, the options, and the limits over all connections."""

    app: ASGIApp
    args: ServerArgs
    slots: ConnectionSlots
    work_scheduler: WorkScheduler
    read_buffer: memoryview
    """Received bytes, until they are copied in the same callback."""
    server_state: ServerState
    """uvicorn's record of open connections and running requests; it waits for them at the end."""
