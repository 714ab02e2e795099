"""`WorkPool`: runs work on threads that would block the event loop; `encoded`: the JSON text of a
reply in pieces; `JsonList`: a list of it that may be long.

One per server, in its context. Work that grows with the size of a request (decoding, tokenizing,
encoding) is run by it, with its size; small work is done at once on the event loop. Knows no
requests.

A thread does not help while one call holds the GIL: functions for the pool process large inputs in
pieces. Between pieces they call `check_wanted`, which ends work whose client has disconnected.
Encoding is one call, too, and so is every copy of its result. Of a large reply, lists are encoded a
few hundred values at a time, and the text is never joined: it is written as it lies.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from functools import partial
from typing import Any, ParamSpec, TypeVar
from weakref import WeakSet

import msgspec

from quire.errors import CapacityError
from quire.system.free_memory import release_free_memory
from quire.system.turn_queue import TurnQueue

INLINE_SIZE = 1024
"""Up to this size work is done on the event loop: it takes less than a millisecond."""
LARGE_SIZE = 1 << 18
"""Beyond this, work is large: it takes a tenth of a second or more, and much memory."""
_TURNS_AT_ONCE = 8
"""Tasks that continue small work in one turn of the event loop."""
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


class NotWantedError(Exception):
    """The caller of this thread's work was cancelled. The error ends the work and is dropped."""


_is_unwanted: ContextVar[threading.Event | None] = ContextVar("quire_is_unwanted", default=None)


def check_wanted() -> None:
    """Raises NotWantedError on a thread of the pool once its caller was cancelled."""
    event = _is_unwanted.get()
    if event is not None and event.is_set():
        raise NotWantedError


async def _until_unwanted(
    submit: Callable[[Callable[[], T]], Future[T]], function: Callable[[], T]
) -> T:
    """The result of work on a thread, which ends at its next `check_wanted` if the caller is
    cancelled."""
    is_unwanted = threading.Event()

    def work() -> T:
        _is_unwanted.set(is_unwanted)
        check_wanted()
        return function()

    try:
        return await asyncio.wrap_future(submit(work))
    except asyncio.CancelledError:
        is_unwanted.set()
        raise


class WorkPool:
    """Runs functions by the size of their work: on the event loop, on one of a few threads, or, if
    it is large, on one of `max_large` threads for large work.

    Sizes are counted in characters to tokenize, tokens, or values to read or write: about a
    microsecond each. Large work has its own threads, so that other work never waits for it, and a
    limit on how much of it may wait. Owned by the event loop.
    """

    def __init__(
        self, max_large: int = 1, max_large_waiting: int = 16, inline_size: int = INLINE_SIZE
    ) -> None:
        self._inline_size = inline_size
        self._apart: WeakSet[WorkPool] = WeakSet()
        self._max_large = max_large
        self._max_waiting = max_large_waiting
        self._threads = ThreadPoolExecutor(_NUM_THREADS, "quire-work")
        self._outside_threads = ThreadPoolExecutor(_NUM_OUTSIDE, "quire-outside-work")
        self._num_outside = self._outside_size = 0
        self._large_threads = ThreadPoolExecutor(max_large, "quire-large-work")
        self._turns = TurnQueue(_TURNS_AT_ONCE)
        self._lock = threading.Lock()
        self._num_large = 0
        self._is_closed = False
        self._release_at = 0.0
        """Time of the next release, by the loop's clock; in the future: the timer is set."""

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

    async def run_on_thread(
        self, size: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Runs work of which a little may take long, never on the event loop; see `run`."""
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
        """Ends the threads after their current work; waiting work is not run."""
        self._is_closed = True
        for pool in self._apart:
            pool.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._outside_threads.shutdown(wait=False, cancel_futures=True)
        self._large_threads.shutdown(wait=False, cancel_futures=True)

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


ITEMS_AT_ONCE = 256
"""Items that are encoded by one call, where there may be many."""
_MARK = b"\0"
"""Stands for a list in an encoded value; no JSON text holds this byte."""
_PLACE = msgspec.Raw(_MARK)


class JsonList:
    """A list that grows. Its values become JSON text as they are added."""

    __slots__ = ("_parts",)

    def __init__(self, values: Sequence[Any] = ()) -> None:
        self._parts: list[bytes] = []
        self.add(values)

    def add(self, values: Sequence[Any]) -> None:
        """Adds some values, in which lists may be `JsonList`s."""
        for begin in range(0, len(values), ITEMS_AT_ONCE):
            check_wanted()
            pieces = encoded(values[begin : begin + ITEMS_AT_ONCE])
            pieces[0] = pieces[0][1:]  # without the brackets
            pieces[-1] = pieces[-1][:-1]
            self.add_encoded(pieces)

    def add_encoded(self, pieces: Iterable[bytes]) -> None:
        """Adds values that are JSON text already."""
        if self._parts:
            self._parts.append(b",")
        self._parts += pieces

    def join(self, others: JsonList) -> None:
        """Adds the values of another list, which stays as it is."""
        if others._parts:
            self.add_encoded(others._parts)

    def as_field(self) -> Any:
        """Itself, in the place of a list in a value that is encoded. It may be in several."""
        return self

    def pieces(self) -> Iterator[bytes]:
        """The whole text."""
        yield b"["
        yield from self._parts
        yield b"]"


class _Met(threading.local):
    """The lists that this thread's encoder has met."""

    lists: list[JsonList]


_met = _Met()


def _place(one: Any) -> msgspec.Raw:
    if not isinstance(one, JsonList):
        raise TypeError(f"{type(one).__name__} has no form in JSON")
    _met.lists.append(one)
    return _PLACE


_encoder = msgspec.json.Encoder(enc_hook=_place)


def encoded(value: Any) -> list[bytes]:
    """The text of a value, in which lists may be `JsonList`s."""
    lists: list[JsonList] = []
    _met.lists = lists
    text = _encoder.encode(value)
    if not lists:
        return [text]
    first, *others = text.split(_MARK)
    pieces = [first]
    for placed, part in zip(lists, others, strict=True):
        pieces += placed.pieces()
        pieces.append(part)
    return pieces


def joined(pieces: Iterable[bytes], num_bytes: int) -> Iterator[bytes]:
    """The same text in pieces of at least so many bytes, but for the last."""
    pending: list[bytes] = []
    size = 0
    for piece in pieces:
        pending.append(piece)
        size += len(piece)
        if size >= num_bytes:
            yield b"".join(pending)
            pending, size = [], 0
    if pending:
        yield b"".join(pending)
