"""IdleTime: an engine that nobody calls works ahead, and leaves off when somebody does."""

from __future__ import annotations

import gc
import queue
import threading
import time
import weakref
from types import SimpleNamespace

import pytest
from polling import until

from quire.frontend.offline import turn_lock
from quire.frontend.offline.turn_lock import IdleTime, TurnLock

WAIT_S = 60


class Core:
    """Has so many pieces of work. Each takes a moment in which the lock has to be held."""

    def __init__(self, lock: TurnLock, num_pieces: int) -> None:
        self.num_left = num_pieces
        self.is_busy = False
        self.was_alone = True
        self.worked = threading.Event()
        self.ended = threading.Event()
        self._lock = lock

    def has_unfinished_requests(self) -> bool:
        return self.is_busy

    def has_idle_work(self) -> bool:
        return self.num_left > 0

    def use_idle_time(self) -> bool:
        self.was_alone = (
            self.was_alone and repr(self._lock._inside).startswith("<locked") and not self.is_busy
        )
        if not self.num_left:
            self.ended.set()
            return False
        self.num_left -= 1
        self.worked.set()
        time.sleep(0.001)
        return True


def num_threads() -> int:
    return sum(thread.name == "quire-idle" for thread in threading.enumerate())


def test_all_of_the_work_is_done_and_then_the_thread_ends() -> None:
    lock = TurnLock()
    core = Core(lock, 5)
    idle = IdleTime(core, lock)
    for num_pieces in (5, 3):
        core.num_left = num_pieces
        core.ended.clear()
        idle.begin()
        assert core.ended.wait(WAIT_S)
        until(lambda: not num_threads())
        assert not core.num_left
        assert core.was_alone


def at_work() -> tuple[TurnLock, Core, IdleTime]:
    """With more to do than any test waits for."""
    lock = TurnLock()
    core = Core(lock, 1_000_000)
    idle = IdleTime(core, lock)
    idle.begin()
    assert core.worked.wait(WAIT_S)
    return lock, core, idle


def test_where_there_is_no_work_there_is_no_thread() -> None:
    lock = TurnLock()
    IdleTime(Core(lock, 0), lock).begin()
    assert not num_threads()


def test_a_call_waits_for_one_piece_and_the_rest_for_its_end() -> None:
    lock, core, idle = at_work()
    with lock:
        core.is_busy = True
        num_left = core.num_left
    until(lambda: not num_threads())
    assert core.num_left == num_left
    assert core.was_alone
    with lock:
        core.is_busy = False
        core.num_left = 3
        idle.begin()
    assert core.ended.wait(WAIT_S)
    until(lambda: not num_threads())


def test_who_calls_again_at_once_is_not_disturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    sleeps: queue.SimpleQueue[float] = queue.SimpleQueue()
    now, may_wake = 0.0, threading.Semaphore(0)

    def sleep(seconds: float) -> None:
        sleeps.put(seconds)
        may_wake.acquire(timeout=WAIT_S)

    clock = SimpleNamespace(monotonic=lambda: now, sleep=sleep)
    monkeypatch.setattr(turn_lock, "time", clock)
    lock = TurnLock()
    core = Core(lock, 3)
    idle = IdleTime(core, lock)
    idle.begin()
    assert sleeps.get(timeout=WAIT_S) == pytest.approx(turn_lock._DELAY_S)
    for _ in range(2):
        now += 0.03
        idle.begin()
        may_wake.release()
        assert sleeps.get(timeout=WAIT_S) == pytest.approx(turn_lock._DELAY_S)
        assert core.num_left == 3
    now += turn_lock._DELAY_S
    may_wake.release()
    assert core.ended.wait(WAIT_S)
    until(lambda: not num_threads())


def test_nothing_is_done_after_the_end() -> None:
    lock, core, idle = at_work()
    with lock:
        idle.end()
        num_left = core.num_left
    until(lambda: not num_threads())
    idle.begin()
    assert not num_threads()
    assert core.num_left == num_left


def test_the_core_is_freed_when_its_owner_lets_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_lock, "_DELAY_S", 0.1)
    lock = TurnLock()
    core = Core(lock, 3)
    IdleTime(core, lock).begin()
    freed = weakref.ref(core)
    del core
    gc.collect()
    assert freed() is None
    until(lambda: not num_threads())
