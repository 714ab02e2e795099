"""Gives memory that clients have made the server use back to the system."""

from __future__ import annotations

import ctypes
import time

_INTERVAL_S = 5.0


class MemoryTrimmer:
    """Trims the C library's heap when there is nothing else to do.

    Without that the library keeps most of what a rush of connections or bodies has needed, since
    some of its memory lies in between. It is glibc's way; elsewhere this does nothing.
    """

    def __init__(self) -> None:
        self._malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        self._mark = 0
        self._trimmed_at = time.monotonic()

    def look(self, mark: int, is_idle: bool) -> None:
        """Trims if the server is idle, and `mark` says that it was not all the time."""
        now = time.monotonic()
        if not is_idle or mark == self._mark or now - self._trimmed_at < _INTERVAL_S:
            return
        self._mark, self._trimmed_at = mark, now
        if self._malloc_trim is not None:
            self._malloc_trim(0)
