"""How many connections there may be, and which of them make room when there are too many."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from itertools import islice

from quire.log import get_logger

logger = get_logger(__name__)

_MIN_WAIT_S = 1.0
"""How long a client may keep a place without a request, however many others want it."""
_MAX_TRIES = 8
_WARNING_INTERVAL_S = 10.0


class Seat:
    """The place of one connection, until it is lost. It is taken without a request under way."""

    __slots__ = ("_room", "evict", "is_reserved")

    def __init__(self, room: Room, is_reserved: bool) -> None:
        self._room: Room | None = room
        self.evict: Callable[[], bool] | None = None
        """Ends the connection that has this place; False if this is no moment for it."""
        self.is_reserved = is_reserved
        """Whether it may ask for health and readiness alone."""

    def wait(self) -> None:
        """The connection has no request under way: it makes room if another one needs it."""
        if self._room is not None:
            self._room.waiting.setdefault(self, time.monotonic())

    def work(self) -> None:
        """A request is under way."""
        if self._room is not None:
            self._room.waiting.pop(self, None)

    def leave(self) -> None:
        """The connection is lost."""
        if self._room is not None:
            self._room.waiting.pop(self, None)
            self._room.num_taken -= 1
            self._room = self.evict = None


class Room:
    """So many places. Owned by the event loop."""

    def __init__(self, capacity: int, min_wait_s: float, is_reserved: bool) -> None:
        """`min_wait_s`: how long a connection keeps its place without a request."""
        self.num_taken = 0
        self.waiting: OrderedDict[Seat, float] = OrderedDict()
        """Places without a request under way, and since when; the longest wait is first."""
        self._capacity = capacity
        self._min_wait_s = min_wait_s
        self._is_reserved = is_reserved

    def take(self) -> Seat | None:
        """A place, if need be that of a connection that has waited long enough."""
        if self.num_taken >= self._capacity and not self._make_place():
            return None
        seat = Seat(self, self._is_reserved)
        self.num_taken += 1
        seat.wait()
        return seat

    def _make_place(self) -> bool:
        latest = time.monotonic() - self._min_wait_s
        for seat, since in tuple(islice(self.waiting.items(), _MAX_TRIES)):
            if since > latest:
                break
            if seat.evict is not None and seat.evict():
                seat.leave()
                return True
            seat.work()
            seat.wait()  # from now on
        return False


class Seats:
    """All places: `max_connections` for everything, and some more for health and readiness.

    When all are taken, the connection that has waited longest without a request makes room. That
    way clients that only hold connections keep nobody out. In a rush of such clients a reserved
    place is kept for as long as it takes `num_reserved` others to come.
    """

    def __init__(self, max_connections: int, num_reserved: int) -> None:
        self._max_connections = max_connections
        self._ordinary = Room(max_connections, _MIN_WAIT_S, is_reserved=False)
        self._reserved = Room(num_reserved, 0.0, is_reserved=True)
        self._warned_at = -_WARNING_INTERVAL_S
        self.num_given = 0
        """Places given since the server began."""

    def take(self) -> Seat | None:
        """A place for a new connection; None if there is none."""
        seat = self._ordinary.take()
        if seat is None:
            self._warn()
            seat = self._reserved.take()
        self.num_given += seat is not None
        return seat

    def _warn(self) -> None:
        now = time.monotonic()
        if now - self._warned_at >= _WARNING_INTERVAL_S:
            self._warned_at = now
            logger.warning(
                "all max_connections %d are in use: more are answered 503", self._max_connections
            )
