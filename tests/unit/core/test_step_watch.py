"""A stuck step is found out; a long one, a starved one and a stopped process are not."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import pytest

from quire.core.loop import LoopStatus
from quire.core.step_watch import WATCH_INTERVAL_S, StepWatch
from quire.system.thread_states import ThreadState, thread_states


class Scene:
    """Two engine threads under a watch; every `pass_time` is one look."""

    def __init__(self, is_counted: bool = True) -> None:
        self.now = 100.0
        self.pieces: int | None = 0 if is_counted else None
        self.cpu_s = {1: 0.0, 2: 0.0}
        self.states = {1: "R", 2: "R"}
        self.status = LoopStatus(last_turn=self.now, thread_id=1, progress=lambda: self.pieces)
        self.watch = StepWatch(self.status, self._threads, clock=lambda: self.now)

    def _threads(self) -> dict[int, ThreadState]:
        return {tid: ThreadState("t", self.states[tid], self.cpu_s[tid]) for tid in (1, 2)}

    def pass_time(
        self, seconds: float = WATCH_INTERVAL_S, shares: tuple[float, float] = (1.0, 1.0)
    ) -> bool:
        """Whether the step is found stuck; `shares` is what each thread had of the time."""
        self.now += seconds
        for tid, share in zip((1, 2), shares, strict=True):
            self.cpu_s[tid] += share * seconds
        return self.watch.look().is_stuck

    def seconds_until_stuck(self, look: Callable[[], bool], limit_s: float) -> float | None:
        begin = self.now
        while self.now - begin < limit_s:
            if look():
                return self.now - begin
        return None


def asleep() -> Scene:
    scene = Scene()
    scene.states = {1: "S", 2: "S"}
    return scene


def test_a_deadlock_is_found_within_two_seconds() -> None:
    scene = asleep()
    scene.pass_time()
    found = scene.seconds_until_stuck(lambda: scene.pass_time(shares=(0, 0)), 10)
    assert found is not None
    assert found < 1.2


def test_the_threads_of_an_idle_loop_are_not_read() -> None:
    scene = asleep()
    scene.status.is_idle = True
    scene.states.clear()  # reading them fails
    assert not any(scene.pass_time(shares=(0, 0)) for _ in range(50))


def test_a_loop_without_end_is_found_as_soon() -> None:
    scene = Scene()
    scene.pass_time()
    found = scene.seconds_until_stuck(scene.pass_time, 10)
    assert found is not None
    assert found < 1.2


def test_looks_that_come_late_do_not_make_a_loop_last() -> None:
    """The loop has the interpreter, so that each look at it takes a while."""
    scene = Scene()
    scene.pass_time()
    found = scene.seconds_until_stuck(lambda: scene.pass_time(1.8 * WATCH_INTERVAL_S), 10)
    assert found is not None
    assert found < 1.4


def test_a_step_that_takes_minutes_is_none() -> None:
    scene = Scene()

    def advance() -> bool:
        assert scene.pieces is not None
        scene.pieces += 1
        return scene.pass_time()

    assert scene.seconds_until_stuck(advance, 300) is None
    assert scene.watch.look().turn_age_s > 299
    assert scene.watch.look().still_s < 1


def test_a_thread_that_gets_no_core_is_none() -> None:
    """The caller sleeps at a barrier, for a worker that somebody else's work keeps waiting."""
    scene = Scene()
    scene.states = {1: "S", 2: "R"}
    scene.pass_time()
    slow = scene.seconds_until_stuck(lambda: scene.pass_time(shares=(0, 0.01)), 60)
    assert slow is None
    assert scene.watch.look().still_s > 50
    scene.states = {1: "S", 2: "D"}
    assert scene.seconds_until_stuck(lambda: scene.pass_time(shares=(0, 0)), 60) is None


def test_a_process_that_was_stopped_is_none() -> None:
    scene = asleep()
    for _ in range(3):
        assert not scene.pass_time(3600.0, shares=(0, 0))
    assert scene.watch.look().turn_age_s < 1


def test_pieces_that_were_long_before_may_be_again() -> None:
    scene = Scene()
    for seconds in (0.6, 1.2, 3.2):
        for _ in range(round(seconds / WATCH_INTERVAL_S)):
            assert not scene.pass_time()
        assert scene.pieces is not None
        scene.pieces += 1
        assert not scene.pass_time()


def test_without_a_count_computing_is_progress_and_sleeping_is_none() -> None:
    scene = Scene(is_counted=False)
    assert scene.seconds_until_stuck(scene.pass_time, 60) is None
    assert scene.watch.look().still_s < 1
    scene.states = {1: "S", 2: "S"}
    found = scene.seconds_until_stuck(lambda: scene.pass_time(shares=(0, 0)), 10)
    assert found is not None
    assert found < 1.2


def test_a_new_turn_is_an_advance() -> None:
    scene = asleep()

    def turn() -> bool:
        scene.status.last_turn = scene.now
        return scene.pass_time(shares=(0, 0))

    assert scene.seconds_until_stuck(turn, 30) is None


def test_threads_as_the_system_shows_them() -> None:
    if not os.path.isdir("/proc/self/task"):
        pytest.skip("relies on /proc")
    is_over = threading.Event()
    sleeper = threading.Thread(target=is_over.wait)
    sleeper.start()
    try:
        end = time.thread_time() + 0.05
        while time.thread_time() < end:
            sum(range(1000))
        found = thread_states("self")
        few = thread_states("self", only=[threading.get_native_id(), 2**22 + 1])
    finally:
        is_over.set()
        sleeper.join()
    own = found[threading.get_native_id()]
    assert not own.is_asleep
    assert own.cpu_s >= 0.04
    assert sleeper.native_id is not None
    assert found[sleeper.native_id].is_asleep
    assert list(few) == [threading.get_native_id()]
    assert thread_states(2**22 + 1) == {}


def test_a_command_may_take_any_time() -> None:
    scene = Scene()
    scene.status.is_in_call = True
    assert not any(scene.pass_time() for _ in range(100))
    scene.status.is_in_call = False
    assert any(scene.pass_time() for _ in range(20))
