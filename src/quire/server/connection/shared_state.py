"""State that all connections of a server share: their number, and the time of the event loop;
and the time that a client has for what comes next."""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING

from starlette.types import ASGIApp

from quire.log import get_logger
from quire.server.args import ServerArgs
from quire.system.turn_queue import TurnQueue

if TYPE_CHECKING:
    from uvicorn.server import ServerState


TIME_SLICE_S = 0.0005
"""Seconds that one connection parses before others may."""
_ROUND_S = 0.002
"""Seconds that all connections work before the event loop runs other callbacks."""


class WorkScheduler:
    """Calls back waiting connections, first come, first served.

    Clients that send many small pieces take much time to parse, and thousands that disconnect
    together take much time to close. However many there are, new connections and replies wait at
    most `_ROUND_S`.
    """

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_scheduled = False

    def add(self, work: Callable[[], None]) -> None:
        """Calls `work` once, soon."""
        self._waiting.append(work)
        self._schedule()

    def _schedule(self) -> None:
        if self._waiting and not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._is_scheduled = False
        end = time.perf_counter() + _ROUND_S
        try:
            for _ in range(len(self._waiting)):
                self._waiting.popleft()()
                if time.perf_counter() > end:
                    break
        finally:
            self._schedule()


logger = get_logger(__name__)

_MIN_IDLE_S = 1.0
"""Seconds for which a connection without a request is safe from being closed for a new one."""
_MIN_TLS_IDLE_S = 2.0
"""The same where a request comes after a TLS handshake."""
_MIN_LATE_IDLE_S = 8.0
"""Seconds for which a connection that has lost its slot is safe from being closed for another
one."""
_MAX_TRIES = 8
_WARNING_INTERVAL_S = 10.0


class ConnectionSlot:
    """The slot of one open connection. It is idle while the connection has no request."""

    __slots__ = ("_pool", "evict", "had_request", "is_reserved")

    def __init__(self, pool: _SlotPool, is_reserved: bool) -> None:
        self._pool: _SlotPool | None = pool
        self.evict: Callable[[], bool] | None = None
        """Closes the connection; False if it cannot be closed now."""
        self.is_reserved = is_reserved
        """Whether the connection may only ask for health and readiness."""
        self.had_request = False
        """Whether a request has arrived on the connection, or was answered an error."""

    def set_idle(self) -> None:
        """The connection has no request: it may be closed for a new one."""
        if self._pool is not None:
            self._pool.idle.setdefault(self, time.monotonic())

    def set_busy(self) -> None:
        """The connection has a request."""
        if self._pool is not None:
            self._pool.idle.pop(self, None)

    def release(self) -> None:
        """The connection is closed. Idempotent."""
        if self._pool is not None:
            self._pool.idle.pop(self, None)
            self._pool.num_used -= 1
            self._pool = self.evict = None

    def move(self, pool: _SlotPool) -> None:
        """Makes an idle connection one of the pool's, which frees its place in its own."""
        assert self._pool is not None
        self._pool.idle.pop(self, None)
        self._pool.num_used -= 1
        self._pool, self.is_reserved = pool, pool.is_reserved
        pool.num_used += 1
        self.set_idle()


class _SlotPool:
    """A fixed number of slots."""

    def __init__(
        self,
        capacity: int,
        min_idle_s: float,
        *,
        is_reserved: bool,
        without_request: _SlotPool | None = None,
    ) -> None:
        """`without_request`: takes connections that have had no request so far, instead of closing
        them for a new one."""
        self.num_used = 0
        self.is_reserved = is_reserved
        self.idle: OrderedDict[ConnectionSlot, float] = OrderedDict()
        """Idle slots and the time since when they are; the longest idle one is first."""
        self._capacity = capacity
        self._min_idle_s = min_idle_s
        self._without_request = without_request

    def acquire(self) -> ConnectionSlot | None:
        """A free slot, or that of a connection that was idle for `min_idle_s`; None if none."""
        if not self._make_room():
            return None
        slot = ConnectionSlot(self, self.is_reserved)
        self.num_used += 1
        slot.set_idle()
        return slot

    def _make_room(self) -> bool:
        return self.num_used < self._capacity or self._evict_one()

    def _evict_one(self) -> bool:
        latest = time.monotonic() - self._min_idle_s
        for slot, since in tuple(islice(self.idle.items(), _MAX_TRIES)):
            if since > latest:
                break
            if self._free(slot):
                return True
            if self.idle.pop(slot, None) is not None:  # otherwise it has a request now
                slot.set_idle()  # at the end
        return False

    def _free(self, slot: ConnectionSlot) -> bool:
        other = self._without_request
        if other is not None and not slot.had_request:
            has_room = other._make_room()
            if has_room:
                slot.move(other)
            return has_room
        if slot.evict is None or not slot.evict():
            return False
        slot.release()
        return True


class ConnectionSlots:
    """The slots of a server: `max_connections`, and some reserved for health and readiness.

    If all are used, the connection that was idle longest is closed, so that idle clients cannot
    keep new ones out. Owned by the event loop.

    A client gets a slot when its first bytes arrive. Without TLS a request begins with these, and
    a reserved slot that is idle has answered. With TLS the request comes after a handshake, which
    takes long where many clients do it at once. So a client whose place is needed before its
    request has come loses the place and not the connection: its request is answered 503. As many
    connections as there are slots may be in that state. Further clients wait, and after some
    seconds the oldest connection in that state is closed for them.
    """

    def __init__(self, max_connections: int, num_reserved: int, *, is_tls: bool = False) -> None:
        self._max_connections = max_connections
        ordinary_s, reserved_s = (_MIN_TLS_IDLE_S,) * 2 if is_tls else (_MIN_IDLE_S, 0.0)
        late: _SlotPool | None = None
        if is_tls:
            num_slots = max_connections + num_reserved
            late = _SlotPool(num_slots, _MIN_LATE_IDLE_S, is_reserved=True)
        self._ordinary = _SlotPool(
            max_connections, ordinary_s, is_reserved=False, without_request=late
        )
        self._reserved = _SlotPool(num_reserved, reserved_s, is_reserved=True, without_request=late)
        self._warned_at = -_WARNING_INTERVAL_S
        self.num_acquired = 0
        """Slots acquired since the server began."""

    def acquire(self) -> ConnectionSlot | None:
        """An ordinary slot for a new connection; None if there is none."""
        slot = self._ordinary.acquire()
        if slot is None:
            self._warn()
        self.num_acquired += slot is not None
        return slot

    def acquire_reserved(self) -> ConnectionSlot | None:
        """A reserved slot, for a client that has begun a request; None if there is none."""
        slot = self._reserved.acquire()
        self.num_acquired += slot is not None
        return slot

    def _warn(self) -> None:
        now = time.monotonic()
        if now - self._warned_at >= _WARNING_INTERVAL_S:
            self._warned_at = now
            logger.warning(
                "all max_connections %d are in use: more are answered 503", self._max_connections
            )


LATE_S = 1.0
"""A limit that has passed for so long before it is looked at begins again with so many seconds: the
process was stopped meanwhile (SIGSTOP), and what the client has sent or read is not known yet."""


class Phase(Enum):
    """Event that a connection waits for. The value is the option with the time limit, if it has
    one."""

    HEAD = "header_timeout"
    """The head of a request."""
    BODY = "body_timeout"
    """The rest of a request that the application has begun to answer."""
    REPLY = "no limit: the application"
    """The application's reply."""
    IDLE = "keep_alive_timeout"
    """Another request, or none."""
    LINGER = "linger_timeout"
    """The client to read the last reply."""
    CLOSED = "no limit: the sender"
    """The last bytes to be sent."""


_WITHOUT_LIMIT = (Phase.REPLY, Phase.CLOSED)
_BUSY = (Phase.BODY, Phase.REPLY, Phase.CLOSED)


class PhaseTimer:
    """Calls `on_late` if a phase takes longer than its limit. Sets the slot idle or busy.

    A connection changes its phase several times per request. So a timer is not cancelled when the
    phase changes: if it fires too early it is set again.
    """

    __slots__ = ("_args", "_due", "_loop", "_on_late", "_slot", "_timer", "phase")

    def __init__(
        self, args: ServerArgs, slot: ConnectionSlot, on_late: Callable[[Phase], None]
    ) -> None:
        """Begins in phase CLOSED, which has no limit."""
        self._args = args
        self._slot = slot
        self._on_late = on_late
        self._loop = asyncio.get_running_loop()
        self._due = math.inf
        """End of the phase's limit, by the loop's clock."""
        self._timer: asyncio.TimerHandle | None = None
        self.phase = Phase.CLOSED

    def enter(self, phase: Phase) -> None:
        """Begins a phase; nothing changes if it is the current one."""
        if phase is self.phase:
            return
        self.phase = phase
        if phase is not Phase.HEAD:
            self._slot.had_request = True
        if phase in _BUSY:
            self._slot.set_busy()
        else:
            self._slot.set_idle()
        if phase in _WITHOUT_LIMIT:
            self._due = math.inf
            return
        self._due = self._loop.time() + getattr(self._args, phase.value)
        if self._timer is not None and self._timer.when() > self._due:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = self._loop.call_at(self._due, self._check)

    def stop(self) -> None:
        """The connection is lost: removes the references between timer and connection."""
        self.phase = Phase.CLOSED
        self._due = math.inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        del self._on_late

    def _check(self) -> None:
        self._timer = None
        if self._due < self._loop.time() - LATE_S:
            self._due = self._loop.time() + LATE_S
        if self._due > self._loop.time():
            if self._due < math.inf:
                self._timer = self._loop.call_at(self._due, self._check)
            return
        self._due = math.inf
        self._on_late(self.phase)


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
