"""`SharedLoop`: steps one `LLMEngine` for all the threads that wait for outputs of it.

Used by `LLM`. Knows requests only as tickets; what is asked for is the caller's business.
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
from quire.outputs import RequestOutput
from quire.system.deferred_signals import deliver_signals, delivered_signals

if TYPE_CHECKING:
    from quire.frontend.offline.llm_engine import LLMEngine

OnOutput = Callable[[RequestOutput], None]


class Ticket:
    """One request whose final output a caller waits for; the request's sink.

    Called by the engine, on the thread that steps or aborts.
    """

    __slots__ = ("caller", "error", "num_outputs", "output", "request_id")

    def __init__(self, request_id: str, num_outputs: int) -> None:
        self.request_id = request_id
        self.num_outputs = num_outputs
        """The request's `n`."""
        self.output: RequestOutput | None = None
        self.error: QuireError | None = None
        """What ended the request in place of an output."""
        self.caller: _Caller | None = None
        """Who waits, once somebody does."""

    def put(self, output: RequestOutput) -> None:
        """The final output."""
        self.output = output
        if self.caller is not None:
            self.caller.take(output)

    def fail(self, error: QuireError) -> None:
        """There will be no output."""
        self.error = error
        if self.caller is not None:
            self.caller.fail(error)


class _Caller:
    """One thread that waits for some tickets."""

    def __init__(self) -> None:
        self.num_open = 0
        """Tickets without an output; changed in an engine's turn only."""
        self.arrived: deque[RequestOutput] = deque()
        """Not yet told to `on_output`."""
        self.error: QuireError | None = None
        self.is_waiting = False
        """For wake_up, having found that another caller drives. Guarded by the loop's lock."""
        self._is_asleep = threading.Lock()
        """Held until there is something to see. Unlike an Event it may be waited for where a signal
        handler raises."""
        self._is_asleep.acquire()

    def wait(self) -> None:
        """Until somebody has woken it up since it last waited."""
        self._is_asleep.acquire()

    def wake_up(self) -> None:
        """Any thread."""
        with suppress(RuntimeError):  # it has not looked since the last time
            self._is_asleep.release()

    def take(self, output: RequestOutput) -> None:
        self.num_open -= 1
        self.arrived.append(output)
        self.wake_up()

    def fail(self, error: QuireError) -> None:
        self.error = error
        self.wake_up()


class SharedLoop:
    """Lets each thread wait for its own requests, whichever thread steps the engine.

    One of those who wait drives: it steps the engine for all of them, so that their requests run
    in the same steps. Whenever it has something to tell its caller, the next one drives. While the
    engine is paused nobody does.
    """

    def __init__(self, engine: LLMEngine) -> None:
        self._engine = engine
        engine.resume_listeners.add(self)
        self._pid = os.getpid()
        self._lock = TurnLock()
        """Guards all of these; held for moments only."""
        self._callers: list[_Caller] = []
        self._driver: _Caller | None = None

    def collect(self, tickets: Sequence[Ticket], on_output: OnOutput) -> list[RequestOutput]:
        """Waits for the outputs of all tickets, and returns them in the tickets' order.

        `on_output` is called with each as it comes, on this thread. If anything is raised, what is
        left of the requests is the caller's to abort. The caller defers signals; their handlers
        run between two steps. Raises EngineDeadError if the engine is shut down meanwhile.
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
        """From now on the tickets' outputs go to the caller."""
        with self._lock:
            if self._pid != os.getpid():  # a forked child: the parent's threads are not here
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
        """Returns when something has arrived, or might have. Raises what a step failed with."""
        if self._may_drive(caller):
            try:
                while not (caller.arrived or caller.error or self._engine.is_paused):
                    self._step()
                    deliver_signals()
            finally:
                self._stop_driving(caller)
        else:
            with delivered_signals():
                caller.wait()
        if caller.error is not None:
            raise caller.error

    def _may_drive(self, caller: _Caller) -> bool:
        with self._lock:
            if self._driver is None and not self._engine.is_paused:
                self._driver = caller
            caller.is_waiting = self._driver is not caller
            return not caller.is_waiting

    def _stop_driving(self, caller: _Caller) -> None:
        """The next one drives."""
        with self._lock:
            if self._driver is caller:
                self._driver = None
        self.on_resumed()

    def on_resumed(self) -> None:
        """If nobody drives now, one of those who wait is woken up to."""
        with self._lock:
            waiting = next((one for one in self._callers if one.is_waiting), None)
            if self._driver is None and waiting is not None:
                waiting.is_waiting = False
                waiting.wake_up()

    def _step(self) -> None:
        """A failure ends everybody's requests: each caller is told, this one by the exception."""
        try:
            self._engine.step()
        except EngineDeadError:
            raise  # whoever waits finds out by itself
        except Exception as error:
            cause = f"{type(error).__name__}: {error}"
            self._engine.fail_all(
                EngineGenerateError(f"a step for several callers failed: {cause}")
            )
            raise
