"""`LoopBinding`: which event loop an `AsyncLLM` serves. One at a time, on whatever thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from quire.errors import ConfigError


class BoundWork(Protocol):
    """What belongs to the loop that is served."""

    def __bool__(self) -> bool:
        """Whether any of it is in flight, so that no other loop can be served."""

    def abandon_all(self) -> None:
        """Ends it without a word: those who waited are gone with their loop."""


class LoopBinding:
    """Binds an engine to the event loop that calls it.

    A call from another loop raises ConfigError while work of the bound loop is in flight;
    otherwise the other loop is bound instead.
    """

    def __init__(
        self, work: BoundWork, on_bound: Callable[[asyncio.AbstractEventLoop], None]
    ) -> None:
        """`on_bound` is told of each loop that is bound, while nothing is in flight."""
        self.loop: asyncio.AbstractEventLoop | None = None
        self._work = work
        self._on_bound = on_bound
        self._num_waiting = 0
        """Calls of that loop that wait for something other than a request's outputs."""
        self._lock = threading.Lock()
        """Guards the choice of the loop, which another thread's loop may want to be."""

    @contextmanager
    def bound(self) -> Iterator[None]:
        """Binds the running loop; no other is bound before the end of the block, which awaits
        nothing."""
        with self._lock:
            self._bind()
            yield

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Binds the running loop; none other can be bound before the end of the block, unless
        this one is closed."""
        with self._lock:
            self._bind()
            self._num_waiting += 1
            loop = self.loop
        try:
            yield
        finally:
            with self._lock:
                if self.loop is loop:
                    self._num_waiting -= 1

    def _bind(self) -> None:
        loop = asyncio.get_running_loop()
        if loop is self.loop:
            return
        if self.loop is not None and self.loop.is_closed():
            self._work.abandon_all()
            self._num_waiting = 0
        elif self._work or self._num_waiting:
            raise ConfigError(
                "the engine is being used by another event loop; it serves one at a time: "
                "make an engine for each, or call it from one loop"
            )
        self.loop = loop
        self._on_bound(loop)
