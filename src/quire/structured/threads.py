"""`GrammarThreads`: threads that follow grammars while the engine's thread continues.

Used by the `StructuredOutputManager`. They do not know grammars: jobs are submitted in rounds, and
each job knows where its result goes. The library releases the GIL while it computes.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from quire.system.thread_states import be_nice

_PER_LANE = 2
"""Threads per lane, so that one slow job does not delay all others."""
_SLOW_NICENESS = 10
"""Niceness of threads for slow jobs: they get about a tenth of the time of a compute thread when
both need the same core."""


class Job(Protocol):
    """Something to do for one request."""

    @property
    def is_slow(self) -> bool:
        """Whether it may take long: then it keeps only others waiting of which that is known."""

    def run(self) -> None:
        """Does it, on any thread. Never raises."""


class JobRunner(Protocol):
    """The threads of a manager: `GrammarThreads`, or a replacement in tests."""

    def run(self, jobs: Sequence[Job], wait_s: float) -> None:
        """Begins all, in any order. Returns when they are done, or after so many seconds."""

    def shutdown(self) -> None:
        """Begins nothing any more. Idempotent."""


class GrammarThreads:
    """Two lanes of threads, made with their first jobs. Any thread may call it."""

    def __init__(self) -> None:
        self._quick = _Lane("quire-masks")
        self._slow = _Lane("quire-slow-masks", _SLOW_NICENESS)

    def run(self, jobs: Sequence[Job], wait_s: float) -> None:
        """Implements `JobRunner.run`."""
        round_ = _Round(len(jobs))
        slow = [job for job in jobs if job.is_slow]
        self._quick.put([job for job in jobs if job not in slow] if slow else jobs, round_)
        self._slow.put(slow, round_)
        if wait_s > 0:
            round_.wait(wait_s)

    def shutdown(self) -> None:
        """Implements `JobRunner.shutdown`."""
        self._quick.shutdown()
        self._slow.shutdown()


class _Round:
    """Jobs that were given together."""

    def __init__(self, num_jobs: int) -> None:
        self._left = num_jobs
        self._lock = threading.Lock()
        self._is_done = threading.Event()

    def job_is_done(self) -> None:
        with self._lock:
            self._left -= 1
            is_last = not self._left
        if is_last:
            self._is_done.set()

    def wait(self, timeout_s: float) -> None:
        self._is_done.wait(timeout_s)


class _Lane:
    """Threads that take jobs from one queue, the oldest first."""

    def __init__(self, name: str, niceness: int = 0) -> None:
        self._jobs: queue.SimpleQueue[tuple[Job, _Round]] = queue.SimpleQueue()
        self._pool = ThreadPoolExecutor(_PER_LANE, name, be_nice, (niceness,))

    def put(self, jobs: Sequence[Job], round_: _Round) -> None:
        for job in jobs:
            self._jobs.put((job, round_))
        # Fewer messages between threads than one for each job.
        for _ in range(min(len(jobs), _PER_LANE)):
            self._pool.submit(self._do_all)

    def shutdown(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _do_all(self) -> None:
        while True:
            try:
                job, round_ = self._jobs.get_nowait()
            except queue.Empty:
                return
            job.run()
            round_.job_is_done()
