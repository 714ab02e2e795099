"""`deferred_interrupt`: Ctrl+C waits for the end of a step, so that no books are left half done.

Used by `LLM`, which goes on serving after an interruption.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def deferred_interrupt() -> Iterator[Callable[[], None]]:
    """Inside, Ctrl+C is only remembered; the function given raises it, where that is safe.

    A second Ctrl+C is not held back: whoever insists gets out at once. Off the main thread,
    where Python delivers no signals, and under a handler of the host's own kind, this does
    nothing.
    """
    previous = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(previous):
        yield lambda: None
        return
    pressed: list[FrameType | None] = []

    def remember(number: int, frame: FrameType | None) -> None:
        if pressed:
            previous(number, frame)
        pressed.append(frame)

    def raise_if_pressed() -> None:
        if pressed:
            previous(signal.SIGINT, pressed.pop())

    signal.signal(signal.SIGINT, remember)
    try:
        yield raise_if_pressed
    finally:
        signal.signal(signal.SIGINT, previous)
