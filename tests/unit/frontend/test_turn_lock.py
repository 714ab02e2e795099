"""One thread at a time, in turn; forked children; and threads in which another one raises."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

import pytest

from quire.errors import EngineDeadError, EngineError
from quire.frontend.offline import turn_lock
from quire.frontend.offline.turn_lock import TurnLock

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
"""Python's own, about fork and threads."""

WAIT_S = 60.0


def test_a_thread_may_enter_again() -> None:
    lock = TurnLock()
    with lock, lock:
        pass
    with lock:
        pass


def test_what_a_step_calls_may_not_enter() -> None:
    lock = TurnLock()
    with lock:
        with lock.stepping(), pytest.raises(EngineError, match="must not call the engine"), lock:
            pass
        with lock:
            pass
    with lock:
        pass


def test_one_thread_at_a_time() -> None:
    lock, inside, most = TurnLock(), 0, 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(200):
            with lock:
                inside += 1
                most = max(most, inside)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_who_lets_go_cannot_overtake_who_waits() -> None:
    lock, turns, is_in = TurnLock(), 0, threading.Event()

    def wait_once() -> None:
        with lock:
            is_in.set()

    with lock:
        waiting = threading.Thread(target=wait_once)
        waiting.start()
        while not lock._door.locked():
            pass
    while not is_in.is_set():
        with lock:
            turns += 1
    waiting.join()
    assert turns <= 1


@contextmanager
def _held_by_another_thread(turn: AbstractContextManager[object]) -> Iterator[None]:
    is_in, may_leave = threading.Event(), threading.Event()

    def hold() -> None:
        with turn:
            is_in.set()
            may_leave.wait()

    holding = threading.Thread(target=hold)
    holding.start()
    is_in.wait()
    try:
        yield
    finally:
        may_leave.set()
        holding.join()


def _in_a_child(work: object) -> int:
    pid = os.fork()
    if not pid:
        try:
            work()  # type: ignore[operator]
        except EngineDeadError:
            os._exit(2)
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_child_has_a_lock_of_its_own() -> None:
    lock = TurnLock()

    def enter() -> None:
        with lock:
            pass

    assert _in_a_child(enter) == 0
    with lock:
        assert _in_a_child(enter) == 0


@pytest.mark.parametrize("times", [1, 2])
def test_a_child_forked_in_the_middle_of_anothers_turn_is_told(times: int) -> None:
    lock = TurnLock()

    def enter() -> None:
        for _ in range(times - 1):
            with suppress(EngineDeadError), lock:
                pass
        with lock:
            pass

    with _held_by_another_thread(lock):
        assert _in_a_child(enter) == 2


def test_a_child_forked_while_another_thread_is_aside_goes_on() -> None:
    lock = TurnLock()

    def enter() -> None:
        with lock:
            pass

    with _held_by_another_thread(lock.aside()):
        assert _in_a_child(enter) == 0
    with lock:
        pass


def test_nobody_has_a_turn_while_another_thread_is_aside() -> None:
    lock, is_in, may_leave = TurnLock(), threading.Event(), threading.Event()
    has_left = False

    def hold() -> None:
        nonlocal has_left
        with lock.aside():
            is_in.set()
            may_leave.wait()
            has_left = True

    holding = threading.Thread(target=hold)
    holding.start()
    is_in.wait()
    threading.Timer(0.05, may_leave.set).start()
    with lock:
        assert has_left
    holding.join()


class TimedOut(BaseException):
    """Raised in a thread from outside."""


def raise_in(thread: threading.Thread) -> None:
    assert thread.ident is not None
    ident, kind = ctypes.c_ulong(thread.ident), ctypes.py_object(TimedOut)
    assert ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, kind) == 1


def started(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_a_waiting_thread_that_is_interrupted_does_not_keep_the_lock() -> None:
    lock = TurnLock()
    raised: list[BaseException] = []
    taken = threading.Event()

    def wait() -> None:
        try:
            with lock:
                pass
        except TimedOut as error:
            raised.append(error)

    def take() -> None:
        with lock:
            taken.set()

    with lock:
        thread = started(wait)
        while not lock._door.locked():
            pass
        raise_in(thread)
    thread.join(WAIT_S)
    assert raised
    started(take)
    assert taken.wait(WAIT_S)


def test_a_thread_that_ended_in_its_turn_is_an_error_of_those_that_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turn_lock, "_CHECK_S", 0.01)
    lock = TurnLock()
    has_ended = threading.Event()
    errors: list[str] = []

    def wait() -> None:
        has_ended.wait(WAIT_S)
        try:
            with lock:
                pass
        except EngineDeadError as error:
            errors.append(str(error))

    waiting = [started(wait) for _ in range(2)]  # first: a later thread may get the id of the ended
    started(lambda: lock.__enter__()).join(WAIT_S)
    has_ended.set()
    for thread in waiting:
        thread.join(WAIT_S)
    assert [error.endswith("create a new engine") for error in errors] == [True, True]


def test_a_thread_that_ended_in_its_turn_is_an_error_after_one_that_waited_aside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turn_lock, "_CHECK_S", 0.01)
    lock, may_end, has_entered = TurnLock(), threading.Event(), threading.Event()
    errors: list[str] = []

    def end_inside() -> None:
        lock.__enter__()
        has_entered.set()
        may_end.wait(WAIT_S)

    def wait(turn: AbstractContextManager[object]) -> None:
        try:
            with turn:
                pass
        except EngineDeadError as error:
            errors.append(str(error))

    ending = started(end_inside)
    has_entered.wait(WAIT_S)
    waiting = [started(lambda: wait(lock.aside()))]
    while not lock._door.locked():
        pass
    waiting.append(started(lambda: wait(lock)))
    may_end.set()
    for thread in (ending, *waiting):
        thread.join(WAIT_S / 4)
    assert [error.endswith("create a new engine") for error in errors] == [True, True]


def test_a_thread_that_takes_long_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_lock, "_CHECK_S", 0.01)
    lock = TurnLock()
    taken = threading.Event()

    def take() -> None:
        with lock:
            taken.set()

    with lock:
        started(take)
        assert not taken.wait(0.2)
    assert taken.wait(WAIT_S)
