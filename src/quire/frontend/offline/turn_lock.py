"""`TurnLock`: what makes an engine, which is one thread's at a time, safe to share by threads.

Used by `LLMEngine` around each call, and by `LLM`. Knows nothing of engines.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from quire.errors import EngineDeadError


class TurnLock:
    """A reentrant lock that is handed on: whoever lets go of it cannot overtake who waits.

    Python's own locks may be taken again before a waiting thread has woken up, so that a thread
    that steps an engine in a loop would keep all others out.

    A forked child has its own; it is unusable if another thread held it during the fork, since
    what it guards was copied in the middle of a change.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._owner: int | None = None
        self._depth = 0
        self._inside = threading.Lock()
        self._door = threading.Lock()
        """Held by the thread that is next, until it is in: others, and who comes again, wait."""

    def __enter__(self) -> None:
        """Waits for the turn. Raises EngineDeadError in a child that has half of a change."""
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
        """A turn that may be cut off at any place: a child that is forked meanwhile can go on. Not
        reentrant."""
        with self._door:
            self._inside.acquire()
        try:
            yield
        finally:
            self._inside.release()

    def _adopt(self, me: int) -> None:
        """The first use in a forked child, where the locks may be held by threads of the parent."""
        if self._owner not in (None, me):
            raise EngineDeadError(
                "this process was forked while another thread was using the engine, which cannot "
                "go on here; make a new engine in the child"
            )
        if self._owner is None:
            self._inside = threading.Lock()
        self._door = threading.Lock()
        self._pid = os.getpid()
