"""`ReadPace`: how much of the processor the readers of the KV store take while requests run."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class ReadPace:
    """A budget of processor time. Any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._left_s: float | None = None
        """None: as much as there is. Below 0: what was taken too much."""
        self._num_alone = 0
        """Threads that have a turn of their own."""

    def grant(self, seconds: float | None) -> None:
        """So much more from now on. What was left is lost, what was taken too much is subtracted.
        None: as much as there is."""
        with self._changed:
            if seconds is not None:
                seconds += min(0.0, self._left_s or 0.0)
            self._left_s = seconds
            self._changed.notify_all()

    @contextmanager
    def turn(self, deadline: float, *, is_alone: bool) -> Iterator[bool]:
        """Waits until there is some; what the thread does then is taken from it. False:
        `time.monotonic()` is past the deadline. `is_alone`: while there is a bound, no other thread
        has such a turn: together they would take several times as much as there is."""
        with self._changed:
            left_s = max(0.0, deadline - time.monotonic())
            may_go = self._changed.wait_for(lambda: self._has_some(is_alone), left_s)
            self._num_alone += is_alone
        began_s = time.thread_time()
        try:
            yield may_go
        finally:
            with self._changed:
                self._num_alone -= is_alone
                if self._left_s is not None:
                    self._left_s -= time.thread_time() - began_s
                self._changed.notify_all()

    def _has_some(self, is_alone: bool) -> bool:
        if self._left_s is None:
            return True
        return self._left_s > 0 and not (is_alone and self._num_alone)
