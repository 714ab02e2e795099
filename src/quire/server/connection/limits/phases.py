"""What a connection waits for, and how long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum

from quire.server.args import ServerArgs
from quire.server.connection.limits.deadline import Deadline
from quire.server.connection.limits.seats import Seat


class Phase(Enum):
    """What a connection waits for."""

    HEAD = "the head of a request"
    BODY = "the rest of the request that is being answered"
    REPLY = "the application"
    IDLE = "another request, or none"
    LINGER = "the client to read the last reply"
    CLOSED = "the last bytes to be sent"


_WITHOUT_WAITING = (Phase.BODY, Phase.REPLY, Phase.CLOSED)


class PhaseClock:
    """Gives the client the time that it has for a phase.

    A connection with no request under way makes room for others: its `seat` is told.
    """

    __slots__ = ("_args", "_deadline", "_on_late", "_seat", "phase")

    def __init__(self, args: ServerArgs, seat: Seat, on_late: Callable[[Phase], None]) -> None:
        """The first phase is the head of the first request. `on_late` is told of a phase whose
        time is over."""
        self._args = args
        self._seat = seat
        self._on_late = on_late
        self._deadline = Deadline(asyncio.get_running_loop())
        self.phase = Phase.HEAD

    def start(self) -> None:
        """The connection is open: its time begins. Before that the acceptor bounds the time."""
        self._seat.wait()
        self._set_deadline()

    def enter(self, phase: Phase) -> None:
        """The connection waits for this now. If it did before, the time goes on."""
        if phase is self.phase:
            return
        self.phase = phase
        if phase in _WITHOUT_WAITING:
            self._seat.work()
        else:
            self._seat.wait()
        self._set_deadline()

    def stop(self) -> None:
        """The connection is lost: frees clock and connection, which refer to each other."""
        self.phase = Phase.CLOSED
        self._deadline.close()
        del self._on_late

    def _set_deadline(self) -> None:
        args, phase = self._args, self.phase
        if phase is Phase.IDLE:
            self._deadline.set(args.keep_alive_timeout, self._pass)
        elif phase is Phase.HEAD:
            self._deadline.set(args.header_timeout, self._pass)
        elif phase is Phase.BODY:
            self._deadline.set(args.body_timeout, self._pass)
        elif phase is Phase.LINGER:
            self._deadline.set(args.linger_timeout, self._pass)
        else:
            self._deadline.clear()

    def _pass(self) -> None:
        self._on_late(self.phase)
