"""Handlers of signals wait for the end of a block, and nothing of the program's own is changed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from quire.system import deferred_signals as module
from quire.system.deferred_signals import deferred_signals, deliver_signals, delivered_signals

ran: list[int] = []


def note(number: int, _: object) -> None:
    ran.append(number)


def fail(number: int, _: object) -> None:
    ran.append(number)
    raise ZeroDivisionError(number)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Real-time signals too may have handlers."""
    numbers = (signal.SIGINT, signal.SIGALRM, signal.SIGUSR1, signal.SIGRTMIN + 3)
    before = {number: signal.getsignal(number) for number in numbers}
    ran.clear()
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_handler_runs_at_a_safe_place_or_at_the_end() -> None:
    number = signal.SIGRTMIN + 3
    signal.signal(signal.SIGALRM, note)
    signal.signal(number, note)
    with deferred_signals() as deliver:
        signal.raise_signal(signal.SIGALRM)
        signal.raise_signal(signal.SIGALRM)  # waits once, as in the kernel
        assert not ran
        deliver()
        assert ran == [signal.SIGALRM]
        with deferred_signals() as inner:
            signal.raise_signal(number)
            inner()  # the outer block decides
        assert ran == [signal.SIGALRM]
    assert ran == [signal.SIGALRM, number]
    assert signal.getsignal(signal.SIGALRM) is note
    assert signal.getsignal(number) is note


def test_what_handlers_raise_leaves_the_block_after_all_of_them() -> None:
    signal.signal(signal.SIGALRM, fail)
    signal.signal(signal.SIGUSR1, note)
    undone = []

    def work() -> None:
        with deferred_signals(undo=lambda: undone.append(list(ran))):
            signal.raise_signal(signal.SIGALRM)
            signal.raise_signal(signal.SIGUSR1)

    with pytest.raises(ZeroDivisionError):
        work()
    assert ran == [signal.SIGALRM, signal.SIGUSR1]
    assert undone == [ran]
    assert signal.getsignal(signal.SIGALRM) is fail


def test_a_second_interrupt_a_second_later_is_not_delayed(monkeypatch: pytest.MonkeyPatch) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    reached = []

    def work() -> None:
        with deferred_signals():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)  # a key that is held down
            monkeypatch.setattr(module, "_INSIST_S", 0.0)
            reached.append("the middle")
            signal.raise_signal(signal.SIGINT)
            reached.append("the end")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert reached == ["the middle"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_handlers_run_at_once_in_code_of_others() -> None:
    signal.signal(signal.SIGALRM, fail)
    with deferred_signals():
        with pytest.raises(ZeroDivisionError), delivered_signals():
            signal.raise_signal(signal.SIGALRM)
        signal.raise_signal(signal.SIGALRM)
        with pytest.raises(ZeroDivisionError):
            deliver_signals()


def test_a_handler_that_is_changed_inside_stays() -> None:
    """It is deferred from then on, and may call the one before it, inside and afterwards."""
    signal.signal(signal.SIGALRM, note)
    with deferred_signals():
        with delivered_signals():
            before = signal.getsignal(signal.SIGALRM)
            assert callable(before)

            def both(number: int, frame: object) -> None:
                ran.append(0)
                before(number, frame)  # type: ignore[operator]

            signal.signal(signal.SIGALRM, both)
        signal.raise_signal(signal.SIGALRM)
        assert not ran
    assert ran == [0, signal.SIGALRM]
    assert signal.getsignal(signal.SIGALRM) is both
    signal.raise_signal(signal.SIGALRM)
    assert ran == [0, signal.SIGALRM] * 2
    with deferred_signals():
        signal.raise_signal(signal.SIGALRM)
        assert len(ran) == 4
    assert len(ran) == 6


def test_other_threads_are_left_alone() -> None:
    seen = []

    def work() -> None:
        with deferred_signals(), delivered_signals():
            seen.append(signal.getsignal(signal.SIGINT))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Python's own, about fork and threads
def test_a_child_of_another_thread_has_its_handlers() -> None:
    signal.signal(signal.SIGALRM, note)
    codes = []

    def fork() -> None:
        pid = os.fork()
        if not pid:
            is_own = signal.getsignal(signal.SIGALRM) is note
            signal.raise_signal(signal.SIGALRM)
            os._exit(0 if is_own and ran == [signal.SIGALRM] else 1)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    with deferred_signals():
        thread = threading.Thread(target=fork)
        thread.start()
        thread.join()
    assert codes == [0]
