"""`Breaker`: leaves a failing tier alone for a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_MOST_FAILURES = 3
_FIRST_PAUSE_S = 10.0
_LONGEST_PAUSE_S = 300.0


class Breaker:
    """Opens after three failures in a row, for 10 s; each time that the first try afterwards fails
    again for twice as long, up to 5 minutes. Any thread."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._num_failures = 0
        self._pause_s = _FIRST_PAUSE_S
        self._closed_from = 0.0

    @property
    def is_open(self) -> bool:
        """Whether the tier is not to be used now."""
        return self._now() < self._closed_from

    def succeeded(self) -> None:
        """A use went well."""
        with self._lock:
            self._num_failures = 0
            self._pause_s = _FIRST_PAUSE_S

    def failed(self) -> float | None:
        """A use failed. If the breaker opens by it: for how many seconds."""
        with self._lock:
            self._num_failures += 1
            if self._num_failures < _MOST_FAILURES or self.is_open:
                return None
            pause_s = self._pause_s
            self._closed_from = self._now() + pause_s
            self._pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            self._num_failures = _MOST_FAILURES - 1
            return pause_s
