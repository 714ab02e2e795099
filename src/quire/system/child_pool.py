"""`ChildPool`: children that threads borrow."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from quire.system.child_process import ChildProcess


class ChildPool:
    """Children of one kind that any thread may borrow; each serves one borrower at a time."""

    def __init__(self, size: int, start: Callable[[], ChildProcess]) -> None:
        """`size`: children at most. `start` makes one, when no idle one is left."""
        self._places = threading.BoundedSemaphore(size)
        self._start = start
        self._idle: list[ChildProcess] = []

    @contextmanager
    def child(self) -> Iterator[ChildProcess]:
        """Borrow a child, once one may run. An exception of the borrower ends the child."""
        with self._places:
            child = self._free()
            try:
                yield child
            except BaseException:
                child.close()
                raise
            if child.is_open:
                self._idle.append(child)

    def _free(self) -> ChildProcess:
        """An idle child, or a new one: the system may have ended an idle one to free memory."""
        while self._idle:
            child = self._idle.pop()
            if child.is_open:
                return child
            child.close()
        return self._start()
