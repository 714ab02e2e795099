"""`ReadPace`: how much of the processor the readers of the KV store take while requests run."""

from __future__ import annotations

import threading
import time


class ReadPace:
    """A budget of processor time. Any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._left_s: float | None = None
        """None: as much as there is. Below 0: what was taken too much."""

    def grant(self, seconds: float | None) -> None:
        """So much more from now on. What was left is lost, what was taken too much is subtracted.
        None: as much as there is."""
        with self._changed:
            if seconds is not None:
                seconds += min(0.0, self._left_s or 0.0)
            self._left_s = seconds
            self._changed.notify_all()

    def wait(self, deadline: float) -> bool:
        """Waits until there is some. False: `time.monotonic()` is past the deadline."""
        with self._changed:
            left_s = deadline - time.monotonic()
            return self._changed.wait_for(
                lambda: self._left_s is None or self._left_s > 0, max(0.0, left_s)
            )

    def take(self, seconds: float) -> None:
        """So much was used."""
        with self._changed:
            if self._left_s is not None:
                self._left_s -= seconds
