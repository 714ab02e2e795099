"""`ReadPace`: limits the processor time of the KV store's readers while requests run."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_FORGETTING = 0.95
"""Decay per turn of the expected time of a turn, which follows the longest recent turn."""


class ReadPace:
    """A budget of processor time. Safe for threads.

    A turn first takes the expected time of its kind (the longest of the recent turns) from the
    budget; the difference is corrected at its end. So several threads can wait for a slow disk at
    the same time, while their total processor time stays within the budget.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._left_s: float | None = None
        """Remaining seconds. None: unlimited. Negative: more was used than granted."""
        self._expected_s: dict[str, float] = {}
        """Expected seconds by kind of turn."""

    def grant(self, seconds: float | None) -> None:
        """Set the budget to `seconds`. An unused rest is lost; an overdraft is subtracted. None:
        unlimited."""
        with self._changed:
            if seconds is not None:
                seconds += min(0.0, self._left_s or 0.0)
            self._left_s = seconds
            self._changed.notify_all()

    @contextmanager
    def turn(self, deadline: float, kind: str) -> Iterator[bool]:
        """Wait for budget, then charge the processor time of the body to it. Yields False if the
        deadline (`time.monotonic()`) passed first. `kind`: groups turns that take about the same
        time; the first turn of a kind takes the whole budget."""
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
