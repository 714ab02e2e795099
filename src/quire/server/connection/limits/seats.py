"""How many connections there may be, and which of them make room when there are too many."""

from __future__ import annotations

import time
from collections.abc import Callable

from quire.log import get_logger

logger = get_logger(__name__)

_MIN_WAIT_S = 1.0
"""How long a client may keep a place without a request, however many others want it."""
_WARNING_INTERVAL_S = 10.0

Evict = Callable[[], bool]


class Seat:
    """The place of one connection, until it is lost. It is taken without a request under way."""

    __slots__ = ("_room", "evict", "is_reserved")

    def __init__(self, room: Room, evict: Evict, is_reserved: bool) -> None:
        self._room: Room | None = room
        self.evict: Evict | None = evict
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

    def __init__(self, capacity: int, min_wait_s: float) -> None:
        self.num_taken = 0
        self.waiting: dict[Seat, float] = {}
        """Places without a request under way, and since when; the longest wait is first."""
        self._capacity = capacity
        self._min_wait_s = min_wait_s

    def make_place(self) -> bool:
        """Whether there is a free place, if need be that of the connection that waits longest."""
        if self.num_taken < self._capacity:
            return True
        now = time.monotonic()
        for seat, since in tuple(self.waiting.items()):
            if now - since < self._min_wait_s:
                break
            if seat.evict is not None and seat.evict():
                seat.leave()
                return True
            seat.work()
            seat.wait()  # it waits again, from now on
        return False


class Seats:
    """All places: `max_connections` for everything, and some more for health and readiness.

    When all are taken, the connection that has waited longest without a request makes room. That
    way clients that only hold connections keep nobody out.
    """

    def __init__(self, max_connections: int, num_reserved: int) -> None:
        self._max_connections = max_connections
        self._ordinary = Room(max_connections, _MIN_WAIT_S)
        self._reserved = Room(num_reserved, 0.0)
        self._warned_at = -_WARNING_INTERVAL_S

    @property
    def num_taken(self) -> int:
        """Open connections."""
        return self._ordinary.num_taken + self._reserved.num_taken

    def take(self, evict: Evict) -> Seat | None:
        """A place for a new connection, which `evict` ends; None if there is none at all."""
        for room, is_reserved in ((self._ordinary, False), (self._reserved, True)):
            if room.make_place():
                seat = Seat(room, evict, is_reserved)
                room.num_taken += 1
                seat.wait()
                return seat
            self._warn()
        return None

    def _warn(self) -> None:
        now = time.monotonic()
        if now - self._warned_at >= _WARNING_INTERVAL_S:
            self._warned_at = now
            logger.warning(
                "all max_connections %d are in use: more are answered 503", self._max_connections
            )
