"""Limits the number of connections, and chooses which one is closed when there are too many."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from itertools import islice

from quire.log import get_logger

logger = get_logger(__name__)

_MIN_IDLE_S = 1.0
"""How long a connection without a request is safe from being closed for a new one."""
_MIN_TLS_IDLE_S = 2.0
"""The same where a request comes after a TLS handshake."""
_MAX_TRIES = 8
_WARNING_INTERVAL_S = 10.0


class ConnectionSlot:
    """The slot of one open connection. It is idle while the connection has no request."""

    __slots__ = ("_pool", "evict", "is_reserved")

    def __init__(self, pool: _SlotPool, is_reserved: bool) -> None:
        self._pool: _SlotPool | None = pool
        self.evict: Callable[[], bool] | None = None
        """Closes the connection; False if it cannot be closed now."""
        self.is_reserved = is_reserved
        """Whether the connection may only ask for health and readiness."""

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


class _SlotPool:
    """A fixed number of slots."""

    def __init__(self, capacity: int, min_idle_s: float, is_reserved: bool) -> None:
        self.num_used = 0
        self.idle: OrderedDict[ConnectionSlot, float] = OrderedDict()
        """Idle slots and the time since when they are; the longest idle one is first."""
        self._capacity = capacity
        self._min_idle_s = min_idle_s
        self._is_reserved = is_reserved

    def acquire(self) -> ConnectionSlot | None:
        """A free slot, or that of a connection that was idle for `min_idle_s`; None if none."""
        if self.num_used >= self._capacity and not self._evict_one():
            return None
        slot = ConnectionSlot(self, self._is_reserved)
        self.num_used += 1
        slot.set_idle()
        return slot

    def _evict_one(self) -> bool:
        latest = time.monotonic() - self._min_idle_s
        for slot, since in tuple(islice(self.idle.items(), _MAX_TRIES)):
            if since > latest:
                break
            if slot.evict is not None and slot.evict():
                slot.release()
                return True
            if self.idle.pop(slot, None) is not None:  # otherwise it has a request now
                slot.set_idle()  # at the end
        return False


class ConnectionSlots:
    """The slots of a server: `max_connections`, and some reserved for health and readiness.

    If all are used, the connection that was idle longest is closed, so that idle clients cannot
    keep new ones out. Owned by the event loop.

    A client gets a slot when its first bytes arrive. Without TLS a request begins with these, and
    a reserved slot that is idle has answered; with TLS the request comes after a handshake.
    """

    def __init__(self, max_connections: int, num_reserved: int, *, is_tls: bool = False) -> None:
        self._max_connections = max_connections
        ordinary_s, reserved_s = (_MIN_TLS_IDLE_S,) * 2 if is_tls else (_MIN_IDLE_S, 0.0)
        self._ordinary = _SlotPool(max_connections, ordinary_s, is_reserved=False)
        self._reserved = _SlotPool(num_reserved, reserved_s, is_reserved=True)
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
