"""Returns free memory of the C library's heap to the system.

glibc keeps most of the memory that a burst of connections or a large body has used, because the
heap is fragmented; `malloc_trim` returns it. With another C library nothing is done.
"""

from __future__ import annotations

import ctypes
import time

_INTERVAL_S = 5.0
_M_ARENA_MAX = -8  # malloc.h


def use_one_arena() -> None:
    """Makes all threads allocate from one heap. Called before the first thread starts.

    By default glibc gives threads heaps of their own. Each keeps up to twice the size of the
    largest freed block at its end, and `malloc_trim` returns the end of the first heap only.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)


def release_free_memory() -> None:
    """Calls `malloc_trim`, which can take some milliseconds. Any thread may call it."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)


class IdleMemory:
    """Releases the memory of connections and small requests while the server is idle."""

    def __init__(self) -> None:
        self._num_events = 0
        self._released_at = time.monotonic()

    def check(self, num_events: int, is_idle: bool) -> None:
        """Releases memory if the server is idle and was not since the last release.

        `num_events`: requests and connections since the start.
        """
        now = time.monotonic()
        is_due = num_events != self._num_events and now - self._released_at >= _INTERVAL_S
        if is_idle and is_due:
            self._num_events, self._released_at = num_events, now
            release_free_memory()
