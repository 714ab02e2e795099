"""`TurnQueue`: much small work of an event loop, a little of it in each turn of the loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from itertools import islice

_FEWEST = 4
"""Calls in a turn, however long they take."""
_TURN_S = 0.004
"""Processor time that a turn may take. One of Python's loops needs about five turns to answer a new
connection."""


class TurnQueue:
    """Makes calls that begin work, such as waking up a task: some now, the others in later turns.

    A step may bring an output to each of some hundreds of readers, and as many requests may arrive
    together. If all of them ran in one turn, a new request, which takes several turns, would wait
    several times for all of them. How long the work takes shows when it is done: a turn that took
    long is followed by one with fewer calls. Owned by the event loop.
    """

    def __init__(self, most: int, work_clock: Callable[[], float] = time.thread_time) -> None:
        """`most`: calls in one turn; `work_clock`: processor time of the loop's thread, in
        seconds."""
        self._most = most
        self._work_clock = work_clock
        self._waiting: dict[Callable[[], object], None] = {}
        """Calls to be made in later turns, in order."""
        self._num_at_once = most
        """Calls in one turn, as far as is known."""
        self._num_left = 0
        """How many more may be made in this turn."""
        self._turn: asyncio.Handle | None = None
        """The next turn, if it is scheduled."""
        self._began_at = 0.0
        """When this turn began, by the work clock."""

    def add(self, call: Callable[[], object]) -> None:
        """Makes the call, now or in one of the next turns; once, if it waits already. Needs a
        running event loop."""
        if self._turn is None:
            self._begin_turn()
        if self._num_left:
            self._num_left -= 1
            call()
        else:
            self._waiting[call] = None

    def discard(self, call: Callable[[], object]) -> None:
        """The call need not be made any more, if it waits."""
        self._waiting.pop(call, None)

    def clear(self) -> None:
        """Forgets what waits: it is gone with its event loop."""
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
