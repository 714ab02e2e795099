"""GrammarThreads: jobs of one round, and jobs that take long."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from quire.structured.manager import GrammarThreads

WAIT_S = 60.0


@dataclass
class Act:
    action: Callable[[], object]
    is_slow: bool = False

    def run(self) -> None:
        self.action()


def test_a_round_is_waited_for() -> None:
    threads, done = GrammarThreads(), list[int]()
    for size in (1, 2, 40):
        done.clear()
        threads.run([Act(lambda: done.append(1), is_slow=n % 3 == 2) for n in range(size)], WAIT_S)
        assert len(done) == size
    threads.run([], 0.0)
    threads.shutdown()
    threads.shutdown()


@pytest.mark.parametrize("num_blocked", [1, 5])
def test_known_slow_jobs_keep_no_others_waiting(num_blocked: int) -> None:
    threads, may_end, done = GrammarThreads(), threading.Event(), threading.Semaphore(0)
    wait = Act(lambda: (may_end.wait(WAIT_S), done.release()), is_slow=True)
    threads.run([wait] * num_blocked, 0.0)
    ran: list[int] = []
    threads.run([Act(lambda: ran.append(1))] * 9, WAIT_S)
    assert len(ran) == 9
    may_end.set()
    for _ in range(num_blocked):
        assert done.acquire(timeout=WAIT_S)
    threads.shutdown()


def test_one_that_is_not_known_to_be_slow_does_not_either() -> None:
    threads, may_end = GrammarThreads(), threading.Event()
    ran: list[int] = []
    threads.run([Act(lambda: may_end.wait(WAIT_S))], 0.01)
    threads.run([Act(lambda: ran.append(1))] * 9, WAIT_S)
    assert len(ran) == 9
    may_end.set()
    threads.shutdown()


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="niceness is the process's")
def test_slow_jobs_leave_the_processor_to_others() -> None:
    found: dict[bool, int] = {}

    def note(is_slow: bool) -> None:
        found[is_slow] = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    threads = GrammarThreads()
    for is_slow in (True, False):
        threads.run([Act(lambda s=is_slow: note(s), is_slow)], WAIT_S)  # type: ignore[misc]
    threads.shutdown()
    own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    assert found == {False: own, True: min(19, own + 10)}
