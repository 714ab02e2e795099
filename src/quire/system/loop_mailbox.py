"""`LoopMailbox`: runs calls from other threads on an event loop, in order."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from quire.system.deferred_signals import with_signals_deferred

_SLICE_S = 0.002
"""Processor time for calls per iteration of the event loop; at least one call is made."""


class LoopMailbox:
    """Runs calls on an event loop, for a limited time per iteration.

    While a loop is busy, many calls accumulate. If all of them ran in one iteration, other work
    would be delayed. Any thread may post.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        work_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        """`work_clock`: processor time of the loop's thread, in seconds."""
        self._loop = loop
        self._work_clock = work_clock
        self._posted: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._is_scheduled = False

    def post(self, call: Callable[..., object], *args: Any) -> None:
        """Schedules a call with these arguments; it is dropped if the loop is closed."""
        if self._loop.is_closed():
            return
        self._posted.append((call, args))
        if not self._is_scheduled:
            self._is_scheduled = True
            try:
                self._loop.call_soon_threadsafe(self._run)
            except RuntimeError:  # its thread has closed it since
                if not self._loop.is_closed():
                    raise

    @with_signals_deferred
    def _run(self) -> None:
        self._is_scheduled = False  # first, so that later posts schedule an iteration
        end = self._work_clock() + _SLICE_S
        try:
            while self._posted:
                call, args = self._posted.popleft()
                call(*args)
                if self._work_clock() > end:
                    break
        finally:
            if self._posted and not self._is_scheduled:
                self._is_scheduled = True
                self._loop.call_soon(self._run)
