"""Ctrl+C between steps: remembered, raised where it is safe, insisted on by a second one."""

from __future__ import annotations

import signal
import threading

import pytest

from quire.system import deferred_signals as module
from quire.system.deferred_signals import deferred_signals


def press() -> None:
    signal.raise_signal(signal.SIGINT)


def test_an_interrupt_waits_for_a_safe_place() -> None:
    reached = []

    def work() -> None:
        with deferred_signals() as raise_if_pressed:
            raise_if_pressed()
            press()
            reached.append("the end of the step")
            raise_if_pressed()
            reached.append("never")

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        work()
    assert reached == ["the end of the step"]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_one_gets_through_at_once() -> None:
    def work() -> None:
        with deferred_signals():
            press()
            press()

    with pytest.raises(KeyboardInterrupt):
        work()


def test_other_threads_are_left_alone() -> None:
    seen = []

    def work() -> None:
        with deferred_signals() as raise_if_pressed:
            raise_if_pressed()
            seen.append(signal.getsignal(signal.SIGINT))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]
