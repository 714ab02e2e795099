"""An event loop whose time passes at once, for tests of what waits for a time and for nothing else.

What a stalled machine does to a test on the real clock does not happen here: between two timers
there is nothing but what the test itself does.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any


class _Selector(selectors.DefaultSelector):
    """Does not wait for the next timer: the clock is put forward to it."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        found = super().select(timeout and 0)
        if not found and timeout:
            self.now += timeout
        return found


class QuickLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._timers = _Selector()
        super().__init__(self._timers)

    def time(self) -> float:
        return self._timers.now


def run_quickly(scenario: Coroutine[Any, Any, Any]) -> Any:
    """`asyncio.run` in that time. Without a timer the loop waits for files and threads as ever."""
    loop = QuickLoop()
    try:
        return loop.run_until_complete(scenario)
    finally:
        if left := [task for task in asyncio.all_tasks(loop) if task.cancel()]:
            loop.run_until_complete(asyncio.wait(left))
        loop.close()
