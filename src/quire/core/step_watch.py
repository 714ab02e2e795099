"""`StepWatch`: distinguishes a stuck step from a long one and from one without processor time.

Polled by each host's watching thread a few times per second. Knows the loop's status and this
process's threads; the client decides what happens to a stuck engine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from quire.core.loop import LoopStatus
from quire.system.thread_states import ThreadState, thread_states

WATCH_INTERVAL_S = 0.1
"""Seconds between two calls of `look`."""
_LATE_S = 2 * WATCH_INTERVAL_S
"""Maximum time that one look counts."""
_STUCK_S = 0.8
"""A step is stuck if it could have advanced for this time and did not ..."""
_STUCK_FACTOR = 3.0
"""... and for this multiple of the longest earlier time without progress, for slow machines."""
_COMPUTE_THREAD = "quire-compute"

ReadThreads = Callable[[], Mapping[int, ThreadState]]


@dataclass(frozen=True, slots=True)
class StepObservation:
    """Result of one look."""

    turn_age_s: float = 0.0
    """Seconds that the current iteration of the loop, of at most one step, has taken ..."""
    still_s: float = 0.0
    """... and seconds since it last advanced; both count only the time in which looks were made."""
    is_stuck: bool = False
    """Whether it could have advanced for so long that it is considered stuck."""


class StepWatch:
    """Adds up the time in which the current iteration could have advanced and did not.

    A step advances whenever its compute threads finish a piece of work, each a small fraction
    of a second; a backend that does not count its pieces advances while its thread computes.
    How the time since the last advance is counted depends on the engine's threads: for a running
    thread its processor time counts; for a thread that waits for a core or for the disk nothing
    counts; for a sleeping thread all the time counts, since no thread of a healthy step sleeps for
    long. A look that is late, because the whole process was stopped or starved, counts as two at
    most. So a long prompt, a busy machine or Ctrl+Z does not count as death. Commands have no
    limit, because loading weights takes long and advances no step, and an idle loop has nothing to
    advance.

    Owned by one thread. Without /proc, nothing is counted and only `step_timeout` applies.
    """

    def __init__(
        self,
        status: LoopStatus,
        read_threads: ReadThreads | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._status = status
        self._read_threads = read_threads or self._engine_threads
        self._clock = clock
        self._looked_at = clock()
        self._sign: tuple[float, int | None] = (0.0, None)
        self._threads: Mapping[int, ThreadState] = {}
        self._age_s = 0.0
        self._still_s = 0.0
        self._had_s = 0.0
        """The part of `_still_s` in which the engine's threads could have advanced."""
        self._longest_s = 0.0
        """The longest such time that ended with an advance."""

    def look(self) -> StepObservation:
        """Observes the loop; to be called every `WATCH_INTERVAL_S`."""
        now, status = self._clock(), self._status
        elapsed_s = min(now - self._looked_at, _LATE_S)
        self._looked_at = now
        before, self._sign = self._sign, (status.last_turn, status.progress())
        if status.is_in_call or status.is_idle:
            self._age_s = 0.0
            self._advance()
            return StepObservation()
        self._age_s = self._age_s + elapsed_s if self._sign[0] == before[0] else 0.0
        self._still_s += elapsed_s
        if self._sign != before:
            self._advance()
        else:
            self._weigh(elapsed_s)
        limit_s = max(_STUCK_S, _STUCK_FACTOR * self._longest_s)
        return StepObservation(self._age_s, self._still_s, is_stuck=self._had_s > limit_s)

    def _advance(self) -> None:
        self._longest_s = max(self._longest_s, self._had_s)
        self._had_s = self._still_s = 0.0
        self._threads = {}

    def _weigh(self, elapsed_s: float) -> None:
        """Counts the time since the last look in which the threads could have advanced."""
        before, self._threads = self._threads, self._read_threads()
        known = self._threads.keys() & before.keys()
        if not known:  # first look without progress: the next one can compare two states
            return
        awake = [tid for tid in known if not self._threads[tid].is_asleep]
        if awake and self._sign[1] is None:
            self._advance()  # its thread computes, which is all that is known
            return
        used_s = [self._threads[tid].cpu_s - before[tid].cpu_s for tid in awake]
        self._had_s += min([elapsed_s, *used_s])

    def _engine_threads(self) -> Mapping[int, ThreadState]:
        """The loop's thread and its compute threads, which are listed once per standstill."""
        own = self._status.thread_id
        return {
            tid: state
            for tid, state in thread_states("self", only=self._threads or None).items()
            if tid == own or state.name == _COMPUTE_THREAD
        }
