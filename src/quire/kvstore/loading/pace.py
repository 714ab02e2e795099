"""`ReadPace`: how much of the processor the readers of the KV store take while requests run."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_FORGETTING = 0.95
"""What is expected after the longest turn gets less by this factor with each that follows."""


class ReadPace:
    """A budget of processor time. Any thread.

    A turn takes beforehand what the longest of the last ones of its kind has used, and is settled
    at its end. So threads may wait for a slow disk together, but what they do together has room in
    the budget.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._left_s: float | None = None
        """None: as much as there is. Below 0: what was taken too much."""
        self._expected_s: dict[str, float] = {}
        """By kind of turn."""

    def grant(self, seconds: float | None) -> None:
        """So much more from now on. What was left is lost, what was taken too much is subtracted.
        None: as much as there is."""
        with self._changed:
            if seconds is not None:
                seconds += min(0.0, self._left_s or 0.0)
            self._left_s = seconds
            self._changed.notify_all()

    @contextmanager
    def turn(self, deadline: float, kind: str) -> Iterator[bool]:
        """Waits until there is some; what the thread does then is taken from it. False:
        `time.monotonic()` is past the deadline. `kind`: of turns that take about as long. The first
        one takes all that is left."""
        with self._changed:
            left_s = max(0.0, deadline - time.monotonic())
            may_go = self._changed.wait_for(self._has_some, left_s)
            taken_s = self._take(kind) if may_go else 0.0
        began_s = time.thread_time()
        try:
            yield may_go
        finally:
            used_s = time.thread_time() - began_s
            with self._changed:
                if may_go:
                    expected_s = _FORGETTING * self._expected_s.get(kind, 0.0)
                    self._expected_s[kind] = max(used_s, expected_s)
                if self._left_s is not None:
                    self._left_s += taken_s - used_s
                self._changed.notify_all()

    def _has_some(self) -> bool:
        return self._left_s is None or self._left_s > 0

    def _take(self, kind: str) -> float:
        if self._left_s is None:
            return 0.0
        seconds = self._expected_s.get(kind, self._left_s)
        self._left_s -= seconds
        return seconds
