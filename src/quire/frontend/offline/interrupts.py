"""`deferred_interrupt`: Ctrl+C waits for the end of a step, so that no books are left half done.

Used by `LLMEngine` and its callers, which go on serving after an interruption.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_is_deferring = False
"""Whether the main thread is inside a block."""


@contextmanager
def deferred_interrupt() -> Iterator[Callable[[], None]]:
    """Inside, Ctrl+C is only remembered; the function given raises it, where that is safe, and
    so does the end of the block.

    A second Ctrl+C is not delayed: it ends the call at once. Off the main thread,
    where Python delivers no signals, under a handler of the host's own kind, and inside another
    such block, which decides, this does nothing.
    """
    global _is_deferring
    if threading.get_ident() != threading.main_thread().ident or _is_deferring:
        yield _nothing
        return
    previous = signal.getsignal(signal.SIGINT)
    if not callable(previous):
        yield _nothing
        return
    pressed: list[FrameType | None] = []

    def remember(number: int, frame: FrameType | None) -> None:
        if pressed:
            previous(number, frame)
        pressed.append(frame)

    def raise_if_pressed() -> None:
        if pressed:
            previous(signal.SIGINT, pressed.pop())

    try:
        _is_deferring = True
        signal.signal(signal.SIGINT, remember)
        yield raise_if_pressed
    finally:
        signal.signal(signal.SIGINT, previous)
        _is_deferring = False
        raise_if_pressed()


def _nothing() -> None:
    """Nothing is remembered."""
