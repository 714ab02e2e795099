"""Returns unused memory of the C library's heap to the system while the server is idle."""

from __future__ import annotations

import ctypes
import time

_INTERVAL_S = 5.0


class IdleMemory:
    """Calls glibc's `malloc_trim`; does nothing with another C library.

    Without it the heap keeps most of the memory that a burst of connections or bodies has used,
    because it is fragmented.
    """

    def __init__(self) -> None:
        self._malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        self._num_events = 0
        self._released_at = time.monotonic()

    def release(self, num_events: int, is_idle: bool) -> None:
        """Releases memory if the server is idle, and `num_events` has changed since the last
        release. `num_events`: requests and connections since the start."""
        now = time.monotonic()
        if not is_idle or num_events == self._num_events or now - self._released_at < _INTERVAL_S:
            return
        self._num_events, self._released_at = num_events, now
        if self._malloc_trim is not None:
            self._malloc_trim(0)
