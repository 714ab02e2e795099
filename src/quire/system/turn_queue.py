"""`TurnQueue`: limits how many callbacks run per event-loop iteration."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from itertools import islice

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
