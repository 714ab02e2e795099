"""`WorkThreads`: the threads of a server's work, by its size, and limits on how much may wait.

The base of `WorkPool`. Work runs here until it ends or, at its next `check_wanted`, because its
caller was cancelled. What large work has used is given back to the system soon after it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar

from quire.errors import CapacityError
from quire.server.json_pieces import IS_UNWANTED, check_wanted
from quire.system.free_memory import release_free_memory

LARGE_SIZE = 1 << 18
"""Beyond this, work is large: it takes a tenth of a second or more, and much memory."""
_NUM_THREADS = 4
"""Threads for work that is neither small nor large."""
_NUM_OUTSIDE = 4
"""Threads for work outside of this process."""
_MOST_OUTSIDE = 512
"""Most of such work at once."""
_MOST_OUTSIDE_SIZE = 1 << 29
"""Most characters of such work at once, besides that of one request."""
_KEPT_SIZE = 1 << 14
"""Up to this size, work's freed memory is left to the allocator for the next work."""
_RELEASE_AFTER_S = 0.5
"""Time from the end of work to the release of its memory; the reply is sent first."""

P = ParamSpec("P")
T = TypeVar("T")


class WorkThreads:
    """A few threads for work of every size, `max_large` for large work, so that other work never
    waits for it, and some for work outside of this process. Owned by the event loop."""

    def __init__(self, max_large: int, max_large_waiting: int) -> None:
        self._max_large = max_large
        self._max_waiting = max_large_waiting
        self._threads = ThreadPoolExecutor(_NUM_THREADS, "quire-work")
        self._outside_threads = ThreadPoolExecutor(_NUM_OUTSIDE, "quire-outside-work")
        self._num_outside = self._outside_size = 0
        self._large_threads = ThreadPoolExecutor(max_large, "quire-large-work")
        self._lock = threading.Lock()
        self._num_large = 0
        self._is_closed = False
        self._release_at = 0.0
        """Time of the next release, by the loop's clock; in the future: the timer is set."""

    async def run_on_thread(
        self, size: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Runs work of which a little may take long, never on the event loop. Raises its
        errors, and CapacityError if too much large work waits."""
        submit = self._submit_large if size > LARGE_SIZE else self._threads.submit
        try:
            return await _until_unwanted(submit, partial(function, *args, **kwargs))
        finally:
            if size > _KEPT_SIZE:
                self._release_memory_soon()

    async def run_outside(
        self, size: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run work that is done outside of this process, by a network or another process, and takes
        unknown time. It has threads of its own, and its number and size are limited."""
        with self._lock:
            is_large = self._outside_size and self._outside_size + size > _MOST_OUTSIDE_SIZE
            if self._num_outside >= _MOST_OUTSIDE or is_large:
                raise CapacityError(
                    f"The server is at its limit: {self._num_outside} requests with images are "
                    "being read. Try again later."
                )
            self._num_outside += 1
            self._outside_size += size
        try:
            work = partial(function, *args, **kwargs)
            return await _until_unwanted(self._outside_threads.submit, work)
        finally:
            with self._lock:
                self._num_outside -= 1
                self._outside_size -= size
            if size > _KEPT_SIZE:
                self._release_memory_soon()

    def close(self) -> None:
        """Ends the threads after their current work; waiting work is not run."""
        self._is_closed = True
        for threads in (self._threads, self._outside_threads, self._large_threads):
            threads.shutdown(wait=False, cancel_futures=True)

    def _release_memory_soon(self) -> None:
        """Schedules one release of memory for all work that ends until then."""
        loop = asyncio.get_running_loop()
        if self._release_at < loop.time() + _RELEASE_AFTER_S:
            self._release_at = loop.time() + 2 * _RELEASE_AFTER_S
            loop.call_at(self._release_at, self._release_memory)

    def _release_memory(self) -> None:
        if not self._is_closed:
            self._threads.submit(release_free_memory)

    def _submit_large(self, work: Callable[[], T]) -> Future[T]:
        with self._lock:
            if self._num_large >= self._max_large + self._max_waiting:
                raise CapacityError(
                    f"The server is at its limit: {self._max_waiting} large requests are waiting "
                    f"(max_large_requests_waiting {self._max_waiting}). Try again later."
                )
            self._num_large += 1
        future = self._large_threads.submit(work)
        future.add_done_callback(self._on_large_done)
        return future

    def _on_large_done(self, _: Future[Any]) -> None:
        with self._lock:
            self._num_large -= 1


async def _until_unwanted(
    submit: Callable[[Callable[[], T]], Future[T]], function: Callable[[], T]
) -> T:
    """The result of work on a thread, which ends at its next `check_wanted` if the caller is
    cancelled."""
    is_unwanted = threading.Event()

    def work() -> T:
        IS_UNWANTED.set(is_unwanted)
        check_wanted()
        return function()

    try:
        return await asyncio.wrap_future(submit(work))
    except asyncio.CancelledError:
        is_unwanted.set()
        raise
