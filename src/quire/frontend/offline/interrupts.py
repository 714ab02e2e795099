"""`deferred_interrupt`: Ctrl+C waits for the end of a step, so that no books are left half done.

Used by `LLMEngine` and its callers, which go on serving after an interruption.
"""

from __future__ import annotations

# The functions of `signal` are wrappers of these, which before Python 3.12 take 24 us together.
import _signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType

_is_deferring = False
"""Whether the main thread is inside a block."""


class deferred_interrupt:  # noqa: N801 - read as a function
    """Inside, Ctrl+C is only remembered; the function given raises it, where that is safe, and
    so does the end of the block.

    A second Ctrl+C is not delayed: it ends the call at once. Off the main thread,
    where Python delivers no signals, under a handler of the host's own kind, and inside another
    such block, which decides, this does nothing.
    """

    __slots__ = ("_frames", "_is_inside", "_previous")

    def __enter__(self) -> Callable[[], None]:
        """Returns the function that raises what was remembered."""
        global _is_deferring
        self._previous: Callable[[int, FrameType | None], object] | None = None
        self._frames: list[FrameType | None] = []
        if _is_deferring or threading.get_ident() != threading.main_thread().ident:
            return _nothing
        previous = _signal.getsignal(_signal.SIGINT)
        if not callable(previous):
            return _nothing
        self._previous = previous
        try:
            _signal.signal(_signal.SIGINT, self._remember)
            _is_deferring = True
        except BaseException:  # Ctrl+C came just before
            _signal.signal(_signal.SIGINT, previous)
            raise
        return self._raise_if_pressed

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        global _is_deferring
        if self._previous is None:
            return
        try:
            _signal.signal(_signal.SIGINT, self._previous)
        finally:
            _is_deferring = False
        self._raise_if_pressed()

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if self._frames and self._previous is not None:
            self._previous(number, frame)
        self._frames.append(frame)

    def _raise_if_pressed(self) -> None:
        if self._frames and self._previous is not None:
            self._previous(_signal.SIGINT, self._frames.pop())


def _nothing() -> None:
    """Nothing is remembered."""
