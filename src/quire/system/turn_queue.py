"""`TurnQueue`: limits how many callbacks run per event-loop iteration."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Any

from quire.system.deferred_signals import with_signals_deferred

_FEWEST = 4
"""Minimum number of calls per iteration, even if they take long."""
_TURN_S = 0.004
"""Processor time per iteration. asyncio needs about five iterations to answer a new connection."""


class TurnQueue:
    """Runs calls that begin work, such as waking up a task: some now, others in later iterations.

    A step may produce an output for each of several hundred readers, and as many requests may
    arrive together. If all of them ran in one iteration, a new request, which takes several
    iterations, would wait several times for all of them. The duration of the work is only known
    afterwards: an iteration that took long is followed by one with fewer calls. Owned by the event
    loop.
    """

    def __init__(self, most: int, work_clock: Callable[[], float] = time.thread_time) -> None:
        """`most`: maximum calls per iteration; `work_clock`: processor time of the loop's thread,
        in seconds."""
        self._most = most
        self._work_clock = work_clock
        self._waiting: dict[Callable[[], object], None] = {}
        """Calls for later iterations, in order."""
        self._num_at_once = most
        """Current limit of calls per iteration."""
        self._num_left = 0
        """Number of calls that may still run in this iteration."""
        self._turn: asyncio.Handle | None = None
        """The next iteration, if it is scheduled."""
        self._began_at = 0.0
        """When this iteration began, by the work clock."""

    def add(self, call: Callable[[], object]) -> None:
        """Runs the call now or in one of the next iterations; only once if it already waits. Needs
        a running event loop."""
        if self._turn is None:
            self._begin_turn()
        if self._num_left:
            self._num_left -= 1
            call()
        else:
            self._waiting[call] = None

    def discard(self, call: Callable[[], object]) -> None:
        """Drops the call if it waits."""
        self._waiting.pop(call, None)

    def clear(self) -> None:
        """Drops all waiting calls, because their event loop is closed."""
        self._waiting.clear()
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None

    def _begin_turn(self) -> None:
        self._began_at = self._work_clock()
        self._num_left = self._num_at_once
        self._turn = asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._turn = None
        took_s = self._work_clock() - self._began_at
        if took_s > _TURN_S:
            self._num_at_once = max(_FEWEST, self._num_at_once // 2)
        elif took_s < _TURN_S / 2:
            self._num_at_once = min(self._most, self._num_at_once * 2)
        if not self._waiting:
            return
        self._begin_turn()
        for call in list(islice(self._waiting, self._num_at_once)):
            del self._waiting[call]
            self._num_left -= 1
            call()


_SLICE_S = 0.002
"""Processor time for calls per iteration of the event loop; at least one call is made."""


class LoopMailbox:
    """Runs calls on an event loop, for a limited time per iteration.

    While a loop is busy, many calls accumulate. If all of them ran in one iteration, other work
    would be delayed. Any thread may post.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, work_clock: Callable[[], float] = time.thread_time
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
