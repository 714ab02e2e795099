"""`SharedLoop`: steps one `LLMEngine` for all threads that wait for its outputs.

Used by `LLM`. Requests are known only as tickets; their contents are the caller's.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from quire.errors import EngineDeadError, EngineGenerateError, QuireError
from quire.frontend.offline.turn_lock import TurnLock
from quire.frontend.request_record import AnyOutput
from quire.system.deferred_signals import deliver_signals, delivered_signals

if TYPE_CHECKING:
    from quire.frontend.offline.llm_engine import LLMEngine

OnOutput = Callable[[AnyOutput], None]
_CHECK_S = 1.0
"""Seconds between two looks at whether a waiting thread paused the engine itself."""


class Ticket:
    """A request whose final output a caller waits for; serves as the request's sink.

    Called by the engine, on the thread that steps or aborts.
    """

    __slots__ = ("caller", "error", "num_outputs", "output", "request_id")

    def __init__(self, request_id: str, num_outputs: int) -> None:
        self.request_id = request_id
        self.num_outputs = num_outputs
        """The request's `n`."""
        self.output: AnyOutput | None = None
        self.error: QuireError | None = None
        """Error that ended the request without an output."""
        self.caller: _Caller | None = None
        """The waiting caller, if any."""

    @property
    def is_open(self) -> bool:
        """Whether the request has not ended."""
        return self.output is None and self.error is None

    def put(self, output: AnyOutput) -> None:
        """Store the final output."""
        self.output = output
        if self.caller is not None:
            self.caller.take(output)

    def fail(self, error: QuireError) -> None:
        """Store the error that ended the request."""
        self.error = error
        if self.caller is not None:
            self.caller.fail(error)


class _Caller:
    """A thread that waits for some tickets."""

    def __init__(self) -> None:
        self.num_open = 0
        """Tickets without an output; changed only while holding the engine's turn."""
        self.arrived: deque[AnyOutput] = deque()
        """Outputs not passed to `on_output` yet."""
        self.error: QuireError | None = None
        self.is_waiting = False
        """Whether the thread waits for wake_up because another caller drives. Guarded by the loop's
        lock."""
        self._is_asleep = threading.Lock()
        """Held until there is news. Unlike an Event, it may be waited for where a signal handler
        can raise."""
        self._is_asleep.acquire()

    def wait(self, timeout_s: float) -> bool:
        """Wait until `wake_up` was called since the last wait. Returns whether it was."""
        return self._is_asleep.acquire(timeout=timeout_s)

    def wake_up(self) -> None:
        """Wake the thread up. Thread-safe."""
        with suppress(RuntimeError):  # already released and not acquired since
            self._is_asleep.release()

    def take(self, output: AnyOutput) -> None:
        self.num_open -= 1
        self.arrived.append(output)
        self.wake_up()

    def fail(self, error: QuireError) -> None:
        self.error = error
        self.wake_up()


class SharedLoop:
    """Lets each thread wait for its own requests, regardless of which thread steps the engine.

    One of the waiting threads drives: it steps the engine for all of them, so that their requests
    share the steps. When it has results for its own caller, the next thread drives. While the
    engine is paused, no thread drives.
    """

    def __init__(self, engine: LLMEngine) -> None:
        self._engine = engine
        engine.resume_listeners.add(self)
        self._pid = os.getpid()
        self._lock = TurnLock()
        """Guards the attributes below; held only briefly."""
        self._callers: list[_Caller] = []
        self._driver: _Caller | None = None

    def collect(self, tickets: Sequence[Ticket], on_output: OnOutput) -> list[AnyOutput]:
        """Wait for the outputs of all tickets; returns them in the tickets' order.

        `on_output` is called with each output as it arrives, on this thread. If an exception is
        raised, the caller must abort the remaining requests. The caller defers signals; their
        handlers run between two steps. Raises EngineDeadError if the engine is shut down in the
        meantime.
        """
        caller = _Caller()
        try:
            self._join(caller, tickets)
            while True:
                while caller.arrived:
                    on_output(caller.arrived.popleft())
                    deliver_signals()
                if not caller.num_open:
                    break
                self._await_news(caller)
        finally:
            self._leave(caller)
        return [ticket.output for ticket in tickets if ticket.output is not None]

    def _join(self, caller: _Caller, tickets: Sequence[Ticket]) -> None:
        """Register the caller as the receiver of the tickets' outputs."""
        with self._lock:
            if self._pid != os.getpid():  # in a forked child, the parent's threads do not exist
                self._pid, self._callers, self._driver = os.getpid(), [], None
        with self._engine.turn():
            for ticket in tickets:
                if ticket.error is not None:
                    raise ticket.error
                ticket.caller = caller
                if ticket.output is None:
                    caller.num_open += 1
                else:
                    caller.arrived.append(ticket.output)
        with self._lock:
            self._callers.append(caller)

    def _leave(self, caller: _Caller) -> None:
        with self._lock:
            caller.is_waiting = False
            if caller in self._callers:
                self._callers.remove(caller)
        self._stop_driving(caller)

    def _await_news(self, caller: _Caller) -> None:
        """Wait until something may have arrived. Raises the error of a failed step."""
        if self._may_drive(caller):
            try:
                while not (caller.arrived or caller.error or self._engine.is_paused):
                    self._step()
                    deliver_signals()
            finally:
                self._stop_driving(caller)
        else:
            is_woken = False
            while not is_woken:
                if self._engine.is_paused:  # by a signal handler of this thread?
                    self._engine.refuse_to_wait(is_begun=True)
                with delivered_signals():
                    is_woken = caller.wait(_CHECK_S)
        if caller.error is not None:
            raise caller.error

    def _may_drive(self, caller: _Caller) -> bool:
        with self._lock:
            if self._driver is None and not self._engine.is_paused:
                self._driver = caller
            caller.is_waiting = self._driver is not caller
            return not caller.is_waiting

    def _stop_driving(self, caller: _Caller) -> None:
        with self._lock:
            if self._driver is caller:
                self._driver = None
        self.on_resumed()

    def on_resumed(self) -> None:
        """If no thread drives, wake a waiting one up to drive."""
        with self._lock:
            waiting = next((one for one in self._callers if one.is_waiting), None)
            if self._driver is None and waiting is not None:
                waiting.is_waiting = False
                waiting.wake_up()

    def _step(self) -> None:
        """Run a step. A failure ends all requests: other callers receive an error, this one the
        exception."""
        try:
            self._engine.advance()
        except EngineDeadError:
            raise  # each waiting thread detects the shutdown itself
        except Exception as error:
            cause = f"{type(error).__name__}: {error}"
            self._engine.fail_all(
                EngineGenerateError(f"a step shared by several callers failed: {cause}")
            )
            raise
