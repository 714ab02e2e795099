"""`WorkPool`: runs work by its size, on the event loop or on threads.

One per server, in its context. Work that grows with the size of a request (decoding, tokenizing,
encoding) is run by it, with its size; small work is done at once on the event loop. Knows no
requests.

A thread does not help while one call holds the GIL: functions for the pool process large inputs in
pieces. Between pieces they call `check_wanted`, which ends work whose client has disconnected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar
from weakref import WeakSet

from quire.server.work_threads import WorkThreads
from quire.system.turn_queue import TurnQueue

INLINE_SIZE = 1024
"""Up to this size work is done on the event loop: it takes less than a millisecond."""
_TURNS_AT_ONCE = 8
"""Tasks that continue small work in one turn of the event loop."""

P = ParamSpec("P")
T = TypeVar("T")


class WorkPool(WorkThreads):
    """Runs functions by the size of their work: on the event loop, on one of a few threads, or, if
    it is large, on one of `max_large` threads for large work.

    Sizes are counted in characters to tokenize, tokens, or values to read or write: about a
    microsecond each. Owned by the event loop.
    """

    def __init__(
        self, max_large: int = 1, max_large_waiting: int = 16, inline_size: int = INLINE_SIZE
    ) -> None:
        super().__init__(max_large, max_large_waiting)
        self._inline_size = inline_size
        self._apart: WeakSet[WorkPool] = WeakSet()
        self._turns = TurnQueue(_TURNS_AT_ONCE)

    def is_small(self, size: int) -> bool:
        """Whether work of this size is done on the event loop."""
        return size <= self._inline_size

    async def run(
        self, size: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """The function's result. Raises its errors, and CapacityError if too much large work waits.
        If cancelled, the function ends at its next `check_wanted`."""
        if self.is_small(size):
            return function(*args, **kwargs)
        return await self.run_on_thread(size, function, *args, **kwargs)

    def apart(self) -> WorkPool:
        """A pool with threads of its own and none of its work on the event loop: for work of which
        a little may take long. It is closed with this one."""
        pool = WorkPool(self._max_large, self._max_waiting, inline_size=0)
        self._apart.add(pool)
        return pool

    async def turn(self) -> None:
        """Lets other tasks run between two pieces of small work. Returns sooner or
        later, so that tasks with much such work do not all continue in the same turn."""
        await asyncio.sleep(0)
        is_due = asyncio.Event()
        self._turns.add(is_due.set)
        await is_due.wait()

    def close(self) -> None:
        super().close()
        for pool in self._apart:
            pool.close()
