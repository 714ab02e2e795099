"""`TurnLock`: threads use an engine in turns; and `IdleTime`: the background work of an engine
between calls."""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from quire.errors import EngineDeadError, EngineError

_DELAY_S = 0.05
"""Seconds of idle time before the work starts, so that quick successive calls are not delayed."""
_CHECK_S = 1.0
"""How often a waiting thread checks that the thread whose turn it is still exists, in seconds."""


class IdleCore(Protocol):
    """The methods of `EngineCore` that are used here."""

    def has_unfinished_requests(self) -> bool:
        """Whether there are requests to step."""

    def has_idle_work(self) -> bool:
        """Whether there is background work."""

    def use_idle_time(self) -> bool:
        """Do background work for some milliseconds. Returns False if there is none."""


class IdleTime:
    """A thread that runs while there is background work and no request. A call in the meantime
    waits for some milliseconds."""

    def __init__(self, core: IdleCore, lock: TurnLock) -> None:
        """`lock`: guards every use of the core, whose owner may free it regardless of the
        thread."""
        self._core = weakref.ref(core)
        self._lock = lock
        self._since = 0.0
        """Value of `time.monotonic()` when the last call ended."""
        self._is_working = self._is_over = False

    def begin(self) -> None:
        """Start the thread at the end of a call if no request is left. The caller holds the lock,
        or the engine is not shared yet."""
        core = self._core()
        self._since = time.monotonic()
        if not (self._is_working or self._is_over) and core is not None and core.has_idle_work():
            self._is_working = True
            threading.Thread(target=self._run, name="quire-idle", daemon=True).start()

    def end(self) -> None:
        """Stop the background work. The caller holds the lock."""
        self._is_over = True

    def _run(self) -> None:
        while (left_s := self._since + _DELAY_S - time.monotonic()) > 0:
            time.sleep(left_s)
        with suppress(EngineDeadError):  # callers get it too
            while self._advance():
                pass

    def _advance(self) -> bool:
        """Do one piece of work. Returns False if there is none or the engine is in use again."""
        with self._lock.aside():
            core = self._core()
            if self._is_over or core is None or core.has_unfinished_requests():
                self._is_working = False
            else:
                self._is_working = core.use_idle_time()
            return self._is_working


class TurnLock:
    """A fair reentrant lock: a thread that releases it cannot overtake waiting threads.

    Python's own locks may be acquired again before a waiting thread has woken up, so a thread that
    steps an engine in a loop would starve all others.

    A forked child gets its own lock. It is unusable if another thread held the lock during the
    fork, because the guarded state was then copied in the middle of a change.

    A program may raise an exception in another thread, as functions with a timeout do
    (`PyThreadState_SetAsyncExc`). A thread that gets one while it waits does not keep the lock. A
    thread that ends with the lock makes it unusable: others get an error and do not wait for ever.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._owner: int | None = None
        self._depth = 0
        self._is_stepping = False
        self._inside = threading.RLock()
        """Only its owner can release it."""
        self._door = threading.Lock()
        """Held by the next thread until it has the lock; other threads wait for it."""

    def __enter__(self) -> None:
        """Wait for the turn. Raises EngineError inside a step of this thread, and EngineDeadError
        in a child whose state was copied during a change, or if a thread ended in its turn."""
        me = threading.get_ident()
        if self._pid != os.getpid():
            self._adopt(me)
        if self._owner != me:
            try:
                self._wait_for_turn()
                self._owner = me
            except BaseException:
                with suppress(RuntimeError):  # not acquired
                    self._inside.release()
                raise
        elif self._is_stepping:
            raise EngineError(
                "a function that a step calls, such as a logits processor, must not call the engine"
            )
        self._depth += 1

    def __exit__(self, *raised: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = None
            self._inside.release()

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """The part of the owner's turn in which the guarded state is being changed."""
        self._is_stepping = True
        try:
            yield
        finally:
            self._is_stepping = False

    @contextmanager
    def aside(self) -> Iterator[None]:
        """A turn that may be interrupted at any point: a child forked in the meantime stays usable.
        Not reentrant. Raises EngineDeadError if a thread ended in its turn."""
        self._wait_for_turn()
        try:
            yield
        finally:
            self._inside.release()

    def _wait_for_turn(self) -> None:
        with self._door:
            while not self._inside.acquire(timeout=_CHECK_S):
                owner = self._owner
                if owner is not None and owner not in sys._current_frames():
                    raise EngineDeadError(
                        "the thread that was using the engine has ended in the middle of a change: "
                        "another thread raised an exception in it; create a new engine"
                    )

    def _adopt(self, me: int) -> None:
        """Called at the first use in a forked child, where threads of the parent may hold the
        locks."""
        if self._owner not in (None, me):
            raise EngineDeadError(
                "this process was forked while another thread was using the engine, so the engine "
                "cannot be used here; create a new engine in the child"
            )
        if self._owner is None:
            self._inside = threading.RLock()
        self._door = threading.Lock()
        self._pid = os.getpid()
