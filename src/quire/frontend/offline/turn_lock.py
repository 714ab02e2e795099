"""`TurnLock`: makes an engine, which only one thread may use at a time, safe to share.

Used by `LLMEngine` around each call, and by `LLM`. Does not depend on engines.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from quire.errors import EngineDeadError


class TurnLock:
    """A fair reentrant lock: a thread that releases it cannot overtake waiting threads.

    Python's own locks may be acquired again before a waiting thread has woken up, so a thread that
    steps an engine in a loop would starve all others.

    A forked child gets its own lock. It is unusable if another thread held the lock during the
    fork, because the guarded state was then copied in the middle of a change.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._owner: int | None = None
        self._depth = 0
        self._inside = threading.Lock()
        self._door = threading.Lock()
        """Held by the next thread until it has the lock; other threads wait for it."""

    def __enter__(self) -> None:
        """Wait for the turn. Raises EngineDeadError in a child whose state was copied during a
        change."""
        me = threading.get_ident()
        if self._pid != os.getpid():
            self._adopt(me)
        if self._owner != me:
            with self._door:
                self._inside.acquire()
            self._owner = me
        self._depth += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = None
            self._inside.release()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """A turn that may be interrupted at any point: a child forked in the meantime stays usable.
        Not reentrant."""
        with self._door:
            self._inside.acquire()
        try:
            yield
        finally:
            self._inside.release()

    def _adopt(self, me: int) -> None:
        """Called at the first use in a forked child, where threads of the parent may hold the
        locks."""
        if self._owner not in (None, me):
            raise EngineDeadError(
                "this process was forked while another thread was using the engine, so the engine "
                "cannot be used here; create a new engine in the child"
            )
        if self._owner is None:
            self._inside = threading.Lock()
        self._door = threading.Lock()
        self._pid = os.getpid()
