"""`IdleTime`: has an engine that nobody calls do some work ahead.

Owned by `LLMEngine`, which computes on its callers' threads alone: between two calls nobody would
do it.
"""

from __future__ import annotations

import threading
import time
import weakref
from typing import Protocol

from quire.frontend.offline.turn_lock import TurnLock

_DELAY_S = 0.05
"""From the end of a call on. Whoever calls again at once is not disturbed."""


class IdleCore(Protocol):
    """`EngineCore`, as far as it is used here."""

    def has_unfinished_requests(self) -> bool:
        """Whether a step would do anything."""

    def has_idle_work(self) -> bool:
        """Whether there is anything to do ahead."""

    def use_idle_time(self) -> bool:
        """Some milliseconds of it. False: there is none."""


class IdleTime:
    """A thread that lives as long as there is work and no request. A call that comes meanwhile
    waits for some milliseconds."""

    def __init__(self, core: IdleCore, lock: TurnLock) -> None:
        """`lock`: held by whoever uses the core, which is freed whatever the thread does."""
        self._core = weakref.ref(core)
        self._lock = lock
        self._since = 0.0
        """`time.monotonic()` when the last call ended."""
        self._is_working = self._is_over = False

    def begin(self) -> None:
        """A call ends, and nothing is left to step. The caller has the lock, or the engine is not
        shared yet."""
        core = self._core()
        self._since = time.monotonic()
        if not (self._is_working or self._is_over) and core is not None and core.has_idle_work():
            self._is_working = True
            threading.Thread(target=self._run, name="quire-idle", daemon=True).start()

    def end(self) -> None:
        """Nothing is done any more. The caller has the lock."""
        self._is_over = True

    def _run(self) -> None:
        while (left_s := self._since + _DELAY_S - time.monotonic()) > 0:
            time.sleep(left_s)
        while self._advance():
            pass

    def _advance(self) -> bool:
        """A piece of work. False: there is none, or somebody uses the engine again."""
        with self._lock.aside():
            core = self._core()
            if self._is_over or core is None or core.has_unfinished_requests():
                self._is_working = False
            else:
                self._is_working = core.use_idle_time()
            return self._is_working
