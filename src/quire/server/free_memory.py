"""`IdleMemory`: returns the memory of an idle server's past requests to the system."""

from __future__ import annotations

import time

from quire.system.free_memory import release_free_memory

_INTERVAL_S = 5.0


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
