"""`WorkPool`: threads for what would keep the event loop from turning.

One per server, in its context. Whoever has work that grows with what a caller sent (reading,
tokenizing, writing) gives it here with its size; small work is done at once, where it is. Knows
nothing of requests.

A thread does not help while one call keeps the interpreter to itself: functions given to the pool
go through large things in pieces. Between these they call `check_wanted`, so that nobody's work
goes on for a caller who has left.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

from quire.errors import CapacityError
from quire.server import heap

INLINE_SIZE = 1024
"""Up to this size work is done at once: it takes less than a millisecond."""
LARGE_SIZE = 1 << 18
"""Beyond this, work is large: it takes a tenth of a second or more, and much memory."""
_NUM_THREADS = 4
"""For what is neither small nor large."""
_KEPT_SIZE = 1 << 14
"""Up to this size, the memory of work is what the next work needs."""
_TRIM_AFTER_S = 0.5
"""From the end of work to the return of its memory; until then the reply is on its way."""

P = ParamSpec("P")
T = TypeVar("T")


class NotWantedError(Exception):
    """Nobody waits any longer for what this thread is doing. Nobody sees this error either."""


_is_unwanted: ContextVar[threading.Event | None] = ContextVar("quire_is_unwanted", default=None)


def check_wanted() -> None:
    """Raises NotWantedError on a thread of the pool once its caller has left."""
    event = _is_unwanted.get()
    if event is not None and event.is_set():
        raise NotWantedError


class WorkPool:
    """Runs functions by the size of their work: here, on one of a few threads, or, if it is large,
    on a thread beside which only `max_large - 1` others do large work.

    Sizes are counted in characters to tokenize, tokens, or values to read or write: about a
    microsecond each. Large work has threads of its own, so that the rest never waits for it, and a
    bound on how much of it may wait. Owned by the event loop.
    """

    def __init__(self, max_large: int = 1, max_large_waiting: int = 16) -> None:
        self.max_large_seen = 0
        """The most pieces of large work that were ever under way at once."""
        self._max_large = max_large
        self._max_waiting = max_large_waiting
        self._threads = ThreadPoolExecutor(_NUM_THREADS, "quire-work")
        self._large_threads = ThreadPoolExecutor(max_large, "quire-large-work")
        self._lock = threading.Lock()
        self._num_large = 0
        self._num_large_running = 0
        self._is_closed = False
        self._trim_at = 0.0
        """On the event loop's clock; later than now: the timer is set."""

    async def run(
        self, size: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """The function's value. Raises what it raises, and CapacityError if too much large work
        waits. Cancelled: the function ends at its next `check_wanted`."""
        if size <= INLINE_SIZE:
            return function(*args, **kwargs)
        is_unwanted = threading.Event()

        def work() -> T:
            _is_unwanted.set(is_unwanted)
            check_wanted()
            return function(*args, **kwargs)

        submit = self._submit_large if size > LARGE_SIZE else self._threads.submit
        try:
            return await asyncio.wrap_future(submit(work))
        except asyncio.CancelledError:
            is_unwanted.set()
            raise
        finally:
            if size > _KEPT_SIZE:
                self._trim_soon()

    def close(self) -> None:
        """Lets the threads end; nothing that waits is begun any more."""
        self._is_closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._large_threads.shutdown(wait=False, cancel_futures=True)

    def _trim_soon(self) -> None:
        """Gives memory back in a while, once for all that ends until then."""
        loop = asyncio.get_running_loop()
        if self._trim_at < loop.time() + _TRIM_AFTER_S:
            self._trim_at = loop.time() + 2 * _TRIM_AFTER_S
            loop.call_at(self._trim_at, self._trim)

    def _trim(self) -> None:
        if not self._is_closed:
            self._threads.submit(heap.trim)

    def _submit_large(self, work: Callable[[], T]) -> Future[T]:
        with self._lock:
            if self._num_large >= self._max_large + self._max_waiting:
                raise CapacityError(
                    f"The server is at its limit: {self._max_waiting} large requests are waiting "
                    f"(max_large_requests_waiting {self._max_waiting}). Try again later."
                )
            self._num_large += 1
        future = self._large_threads.submit(self._large, work)
        future.add_done_callback(self._on_large_done)
        return future

    def _large(self, work: Callable[[], T]) -> T:
        with self._lock:
            self._num_large_running += 1
            self.max_large_seen = max(self.max_large_seen, self._num_large_running)
        try:
            return work()
        finally:
            with self._lock:
                self._num_large_running -= 1

    def _on_large_done(self, _: Future[Any]) -> None:
        with self._lock:
            self._num_large -= 1
