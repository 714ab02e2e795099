"""`StepWatch`: tells a step that is stuck from one that is long, or that gets no processor time.

Looked at by each host's watching thread, a few times a second. Knows the loop's status and this
process's threads; what becomes of a stuck engine is its client's business.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from quire.core.loop import LoopStatus
from quire.system.thread_states import ThreadState, thread_states

WATCH_INTERVAL_S = 0.1
"""Between two looks."""
_LATE_S = 2 * WATCH_INTERVAL_S
"""Most time that one look accounts for."""
_STUCK_S = 0.8
"""A step that could have advanced for so long and did not is stuck ..."""
_STUCK_FACTOR = 3.0
"""... unless some earlier piece of work took a third of that, as on a very slow machine."""
_COMPUTE_THREAD = "quire-compute"

ReadThreads = Callable[[], Mapping[int, ThreadState]]


@dataclass(frozen=True, slots=True)
class StepObservation:
    """What one look has shown."""

    turn_age_s: float = 0.0
    """How long the loop has been busy with one turn, which is at most one step ..."""
    still_s: float = 0.0
    """... and since when the turn has not advanced; both only as far as somebody was looking."""
    is_stuck: bool = False
    """It could have advanced for so long that it never will."""


class StepWatch:
    """Adds up the time in which the turn under way could have advanced and did not.

    A step advances whenever its compute threads finish a piece of work, each a small fraction
    of a second; a backend that does not count its pieces advances while its thread computes.
    The time since the last advance counts as far as the engine's threads had it: a thread that
    computes counts its processor time, one that waits to be given a core or for the disk counts
    nothing, and what sleeps counts in full, since in a healthy step nothing sleeps for long.
    A look that comes late (the whole process was stopped, or starved) counts as two at most.
    So neither a long prompt, nor a crowded machine, nor Ctrl+Z is taken for death. A command may
    take any time: loading weights again advances no step.

    Owned by one thread. Without /proc nothing ever counts, and `step_timeout` alone decides.
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
        """The longest of these that ended in an advance."""

    def look(self) -> StepObservation:
        """Looks now; to be called every `WATCH_INTERVAL_S`."""
        now, status = self._clock(), self._status
        elapsed_s = min(now - self._looked_at, _LATE_S)
        self._looked_at = now
        before, self._sign = self._sign, (status.last_turn, status.progress())
        if status.is_in_call:
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
        """Counts the time since the last look, as far as the threads had it."""
        before, self._threads = self._threads, self._read_threads()
        known = self._threads.keys() & before.keys()
        if not known:  # the first look at a turn that stands still: the next has two to compare
            return
        awake = [tid for tid in known if not self._threads[tid].is_asleep]
        if awake and self._sign[1] is None:
            self._advance()  # it computes, and counts nothing else
            return
        used_s = [self._threads[tid].cpu_s - before[tid].cpu_s for tid in awake]
        self._had_s += min([elapsed_s, *used_s])

    def _engine_threads(self) -> Mapping[int, ThreadState]:
        """The loop's own thread and those that compute for it; sought once a standstill."""
        own = self._status.thread_id
        return {
            tid: state
            for tid, state in thread_states("self", only=self._threads or None).items()
            if tid == own or state.name == _COMPUTE_THREAD
        }
