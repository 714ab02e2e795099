"""`Breaker`: stops the use of a failing tier for a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_MOST_FAILURES = 3
_FIRST_PAUSE_S = 10.0
_LONGEST_PAUSE_S = 300.0


class Breaker:
    """Circuit breaker. It opens for 10 s after three failures in a row. Each time the first attempt
    after a pause fails too, the next pause is twice as long, up to 5 minutes. Safe for threads."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._num_failures = 0
        self._pause_s = _FIRST_PAUSE_S
        self._closed_from = 0.0

    @property
    def is_open(self) -> bool:
        """Whether the tier must not be used now."""
        return self._now() < self._closed_from

    def succeeded(self) -> None:
        """Record a successful use of the tier."""
        with self._lock:
            self._num_failures = 0
            self._pause_s = _FIRST_PAUSE_S

    def failed(self) -> float | None:
        """Record a failed use. Return the pause in seconds if this failure opens the breaker."""
        with self._lock:
            self._num_failures += 1
            if self._num_failures < _MOST_FAILURES or self.is_open:
                return None
            pause_s = self._pause_s
            self._closed_from = self._now() + pause_s
            self._pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            self._num_failures = _MOST_FAILURES - 1
            return pause_s
