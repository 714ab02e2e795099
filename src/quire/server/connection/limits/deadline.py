"""The time in which a client must go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Deadline:
    """One moment that can be moved at no cost.

    A connection moves it several times per request. The timer is left alone meanwhile: when it is
    due too early it is set again.
    """

    __slots__ = ("_due", "_loop", "_on_passed", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due = 0.0
        self._on_passed: Callable[[], None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def set(self, seconds: float, on_passed: Callable[[], None]) -> None:
        """Calls `on_passed` in `seconds` from now, instead of what was set before."""
        self._due = self._loop.time() + seconds
        self._on_passed = on_passed
        if self._timer is not None and self._timer.when() > self._due:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = self._loop.call_at(self._due, self._look)

    def clear(self) -> None:
        """There is no deadline for now."""
        self._on_passed = None

    def close(self) -> None:
        """There will be none any more."""
        self._on_passed = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        on_passed = self._on_passed
        if on_passed is None:
            return
        if self._due > self._loop.time():
            self._timer = self._loop.call_at(self._due, self._look)
            return
        self._on_passed = None
        on_passed()
