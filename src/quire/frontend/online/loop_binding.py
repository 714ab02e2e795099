"""`LoopBinding`: binds an `AsyncLLM` to one event loop at a time, on any thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from quire.errors import ConfigError


class BoundWork(Protocol):
    """Work that belongs to the bound loop."""

    def __bool__(self) -> bool:
        """Whether any work is in flight, so that no other loop can be bound."""

    def abandon_all(self) -> None:
        """End all work without notifying its callers, whose loop is closed."""


class LoopBinding:
    """Binds an engine to the event loop that calls it.

    A call from another loop raises ConfigError while work of the bound loop is in flight;
    otherwise the other loop is bound instead.
    """

    def __init__(
        self, work: BoundWork, on_bound: Callable[[asyncio.AbstractEventLoop], None]
    ) -> None:
        """`on_bound` is called for each loop that is bound, while no work is in flight."""
        self.loop: asyncio.AbstractEventLoop | None = None
        self._work = work
        self._on_bound = on_bound
        self._num_waiting = 0
        """Calls of the bound loop that wait for something other than the outputs of requests."""
        self._lock = threading.Lock()
        """Guards the choice of the loop against loops of other threads."""

    @contextmanager
    def bound(self) -> Iterator[None]:
        """Bind the running loop for the block, which must not await."""
        with self._lock:
            self._bind()
            yield

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Bind the running loop for the block, unless the loop is closed before the end."""
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
                "an engine serves one event loop at a time, and another loop is using it: "
                "create an engine for each loop, or call it from one loop"
            )
        self.loop = loop
        self._on_bound(loop)
