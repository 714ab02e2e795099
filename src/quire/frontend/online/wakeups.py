"""`Wakeups`: the readers of a step's outputs run some at a time."""

from __future__ import annotations

import asyncio

_BATCH = 16
"""Readers that are woken before other callbacks of the event loop run."""


class Wakeups:
    """Wakes those who wait for outputs, a batch in each turn of the event loop.

    A step may bring an output to each of some hundreds of readers. If all of them ran in one turn,
    a new request, which takes several turns, would wait several times for all of them. Owned by
    the event loop.
    """

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Event, None] = {}
        """Those to be woken in later turns, in order."""
        self._num_left = _BATCH
        """How many more may be woken in this turn."""
        self._turn: asyncio.Handle | None = None
        """The next turn, if it is scheduled."""

    def wake(self, event: asyncio.Event) -> None:
        """Sets `event`, now or in one of the next turns. Needs a running event loop."""
        if self._turn is None:
            self._schedule()
        if self._num_left:
            self._num_left -= 1
            event.set()
        else:
            self._waiting[event] = None

    def clear(self) -> None:
        """Forgets whom to wake: they are gone with their event loop."""
        self._waiting.clear()
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None

    def _schedule(self) -> None:
        self._num_left = _BATCH
        self._turn = asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._turn = None
        if not self._waiting:
            return
        self._schedule()
        for event in list(self._waiting)[:_BATCH]:
            del self._waiting[event]
            self._num_left -= 1
            event.set()
