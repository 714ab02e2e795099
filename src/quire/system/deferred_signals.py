"""`deferred_signals`: runs signal handlers between two changes of the engine, never within one.

Python runs handlers on the main thread between any two instructions. An exception of a handler
(Ctrl+C, a timeout by SIGALRM) could leave a change incomplete. Used by `LLM` and `LLMEngine` around
each of their methods, and by `AsyncLLM` when it processes a step.
"""

from __future__ import annotations

# The functions of `signal` are wrappers of these, which before Python 3.12 take 24 us together.
import _signal
import os
import threading
import time
from collections.abc import Callable
from functools import wraps
from itertools import compress
from types import FrameType, TracebackType
from typing import Any, ParamSpec, TypeVar

Params = ParamSpec("Params")
Result = TypeVar("Result")
Handler = Callable[[int, FrameType | None], Any]

_NUMBERS = range(1, _signal.NSIG)
_INSIST_S = 1.0
"""Seconds after a Ctrl+C that still waits, after which a second one is raised at once."""


_IDLE, _DEFERRING, _OPEN = range(3)
_state = _IDLE
"""State of the main thread: outside of all blocks; inside a block, in which handlers wait; or
inside a nested block of `delivered_signals`."""
_owner = 0
"""Id of the thread that is inside a block."""
_installed: dict[int, _Deferred] = {}
"""Replacements of the program's handlers, by signal number."""
_waiting: dict[int, tuple[Handler, FrameType | None, float]] = {}
"""Signals that are not handled yet, in order: handler, frame and time (`time.monotonic()`). As in
the kernel, a signal that arrives twice waits once."""


class _Deferred:
    """Replaces a handler. It also works outside of blocks, because a program may have saved and
    installed it."""

    __slots__ = ("handler",)

    def __init__(self, handler: Handler) -> None:
        self.handler = handler

    def __call__(self, number: int, frame: FrameType | None) -> None:
        global _state
        if _state is _DEFERRING and not _is_insisted(number):
            _waiting.setdefault(number, (self.handler, frame, time.monotonic()))
            return
        is_open = _state is _OPEN
        try:
            self.handler(number, frame)
        except BaseException:
            if is_open:
                _state = _DEFERRING  # before anything else is interrupted
            raise


def _is_insisted(number: int) -> bool:
    first = _waiting.get(number)
    if number != _signal.SIGINT or first is None:
        return False
    return time.monotonic() - first[2] >= _INSIST_S


class deferred_signals:  # noqa: N801 - read as a function
    """Runs all signal handlers at the end of the block instead of inside it.

    The block gets a function that runs them earlier, at a point where an exception is safe. Inside
    another such block, this does nothing, because the outer block runs the handlers. It also does
    nothing on other threads than the main thread, where Python runs no handlers.

    A second Ctrl+C after a second runs its handler at once, so that a hanging call can be ended.
    """

    __slots__ = ("_before", "_undo")

    def __init__(self, undo: Callable[[], None] | None = None) -> None:
        """`undo`: called if an exception leaves the block. It may be the exception of a handler
        after the block itself has succeeded, so that its result does not reach the caller."""
        self._undo = undo
        self._before: int | None = None

    def __enter__(self) -> Callable[[], None]:
        global _state, _owner
        me = threading.get_ident()
        if me != threading.main_thread().ident:
            return _nothing
        if _state is _IDLE:
            _owner = me
            try:
                _install()
                self._before = _IDLE
                _state = _DEFERRING
            except BaseException:  # a handler that is not replaced yet
                _restore()
                raise
        else:
            self._before = _state
            _state = _DEFERRING
        return _nothing if self._before is _DEFERRING else deliver_signals

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._undo is not None and error is not None:
            self._undo()
        if self._before is None or self._before is _DEFERRING:
            return
        try:
            self._leave(self._before)
        except BaseException:
            if self._undo is not None and error is None:
                with deferred_signals():
                    self._undo()
            raise

    def _leave(self, before: int) -> None:
        global _state
        _state = before  # first: whatever is raised now, it does not stay as it was
        try:
            if before is _IDLE:
                _restore()
        finally:
            _run_waiting()


class delivered_signals:  # noqa: N801 - read as a function
    """Runs handlers at once again, inside a block of `deferred_signals`. For code outside the
    engine, and for waiting at points where no change is incomplete."""

    __slots__ = ("_is_open",)

    def __enter__(self) -> None:
        global _state
        self._is_open = _state is _DEFERRING and threading.get_ident() == _owner
        if self._is_open:
            _state = _OPEN
            try:
                _run_waiting()
            except BaseException:
                _state = _DEFERRING
                raise

    def __exit__(self, *raised: object) -> None:
        global _state
        if self._is_open:
            _state = _DEFERRING
            _install()  # handlers that are new


def deliver_signals() -> None:
    """Runs waiting handlers. Their exceptions must be safe for the caller here."""
    if _waiting:
        with delivered_signals():
            pass


def with_signals_deferred(method: Callable[Params, Result]) -> Callable[Params, Result]:
    """Decorates a method to run in a block of `deferred_signals`."""

    @wraps(method)
    def deferring(*args: Params.args, **kwargs: Params.kwargs) -> Result:
        with deferred_signals():
            return method(*args, **kwargs)

    return deferring


def with_signals_delivered(function: Callable[Params, Result]) -> Callable[Params, Result]:
    """Decorates a function to run in a block of `delivered_signals`."""

    @wraps(function)
    def delivering(*args: Params.args, **kwargs: Params.kwargs) -> Result:
        with delivered_signals():
            return function(*args, **kwargs)

    return delivering


def raise_ctrl_c(error: BaseException) -> None:
    """Raises an error of a user's code if it is a Ctrl+C that ends a call which hangs. Only the
    main thread gets one. For code that catches all errors: `sys.exit` and the panics of libraries
    in Rust derive from BaseException alone."""
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and isinstance(error, KeyboardInterrupt):
        raise error


def _run_waiting() -> None:
    """Runs all waiting handlers, also after one that raises. The state is OPEN or IDLE."""
    while _waiting:
        number = next(iter(_waiting))
        handler, frame, _ = _waiting.pop(number)
        try:
            handler(number, frame)
        except BaseException:
            _run_waiting()
            raise


def _install() -> None:
    """Replaces the program's handlers. Signals that Python does not handle stay as they are."""
    handlers = [*map(_signal.getsignal, _NUMBERS)]
    for number in compress(_NUMBERS, map(callable, handlers)):
        handler = handlers[number - 1]
        if type(handler) is not _Deferred:
            _installed[number] = deferred = _Deferred(handler)
            _signal.signal(number, deferred)


def _restore() -> None:
    """Restores the program's handlers, except those that were changed in the meantime. Their
    exceptions are raised at the end."""
    raised: BaseException | None = None
    while _installed:
        try:
            number, deferred = next(reversed(_installed.items()))
            if _signal.getsignal(number) is deferred:
                _signal.signal(number, deferred.handler)
            _installed.pop(number, None)
        except BaseException as error:
            raised = error
    if raised is not None:
        raise raised


def _after_fork() -> None:
    """Resets the state in a forked child if another thread was inside the block, because its
    handlers would wait for ever."""
    global _state
    if _state is not _IDLE and threading.get_ident() != _owner:
        _waiting.clear()
        _state = _IDLE
        _restore()


def _nothing() -> None:
    """Does nothing, because an outer block runs the handlers."""


os.register_at_fork(after_in_child=_after_fork)
