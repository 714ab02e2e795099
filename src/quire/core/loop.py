"""The engine loop: takes commands, steps the core and emits events.

Runs on one thread, in one of two hosts: `ThreadHost` runs it in the server's process,
`process_main` in its own process. Does not know its host, asyncio or sockets.
"""

from __future__ import annotations

import queue
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from quire.core import messages
from quire.errors import ConfigError, EngineDeadError, ModelError
from quire.log import get_logger
from quire.protocol import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest
from quire.system import clock

logger = get_logger(__name__)

SWITCH_INTERVAL_S = 0.0005
"""Python's thread switch interval in processes that run an engine loop. The default of 5 ms is as
long as many steps of a small model: after each step the loop would wait that long while other
threads are busy, and they would wait that long for the loop."""
_IDLE_WAIT_S = 0.5
"""Seconds that an idle loop sleeps before it updates its status. The core may use idle time only
after the first sleep, so that work right after a request, also of other programs, is not
disturbed."""


class SteppedCore(Protocol):
    """The core that a loop drives: `EngineCore`, or a fake in tests."""

    @property
    def commands(self) -> Mapping[str, Callable[..., Any]]:
        """Commands that a front end may call by name between two steps, with plain values."""

    def add_request(self, request: EngineCoreRequest) -> None:
        """Queues a request; raises QuireError if it could never run."""

    def abort_requests(self, request_ids: list[str]) -> None:
        """Ends requests; ignores unknown ids."""

    def has_unfinished_requests(self) -> bool:
        """Whether a step is needed."""

    def step(self) -> EngineCoreOutputs:
        """Runs one step. Returns the outputs of requests and a snapshot of the statistics."""

    def waiting(self) -> EngineCoreOutputs | None:
        """Statistics of requests that wait although no step is needed; None: there are none."""

    def use_idle_time(self) -> bool:
        """Does some milliseconds of work that saves time later. Returns False if there is none."""

    def progress(self) -> int | None:
        """A number that changes while a step advances; None if it is not counted. Any thread."""

    def shutdown(self) -> None:
        """Releases everything."""


def _not_counted() -> int | None:
    return None


@dataclass(slots=True)
class LoopStatus:
    """Progress of the loop. Written by the loop's thread, read by any thread."""

    last_turn: float = field(default_factory=time.monotonic)
    """`time.monotonic()` of the last iteration or command; an idle loop updates it, too."""
    thread_id: int | None = None
    """Native id of the loop's thread; None before it runs."""
    progress: Callable[[], int | None] = _not_counted
    """`SteppedCore.progress` of the core."""
    is_idle: bool = False
    """Whether the loop sleeps until a command arrives."""
    is_in_call: bool = False
    """Whether a command is running; it may take as long as loading a model."""


class EngineLoop:
    """Drives one core from an inbox of commands until `Stop`, or until the core fails.

    Invariant: an exception from `step` ends the loop, and one `Dead` event is its last event; an
    exception while a request is added ends only that request. `run` is called on one thread;
    `inbox` and `status` may be used from any thread.
    """

    def __init__(
        self,
        core: SteppedCore,
        emit: Callable[[messages.Event], None],
        status: LoopStatus | None = None,
    ) -> None:
        self.inbox: queue.SimpleQueue[messages.Command] = queue.SimpleQueue()
        self.status = status or LoopStatus()
        self.status.last_turn = time.monotonic()
        self.status.progress = core.progress
        self.failure: BaseException | None = None
        """Error that ended the loop; None after `Stop`."""
        self._core = core
        self._emit = emit
        self._is_stopped = False
        self._is_resting = False
        """Whether no command has arrived for a while."""

    def run(self) -> None:
        """Loops until a `Stop`, or until the core raises; never raises."""
        self.status.thread_id = threading.get_native_id()
        try:
            while not self._is_stopped:
                self._take_commands()
                if self._has_work():
                    self._step()
        except BaseException as error:
            logger.exception("the engine loop failed")
            self.failure = error
            self._emit(death_of(error))
        finally:
            self._core.shutdown()

    def _has_work(self) -> bool:
        return not self._is_stopped and self._core.has_unfinished_requests()

    def _take_commands(self) -> None:
        """Handles all queued commands; without work, sleeps until a command arrives."""
        self.status.last_turn = time.monotonic()
        try:
            if not self._has_work():
                if not self._is_resting and (waiting := self._core.waiting()) is not None:
                    self._emit(messages.Step(waiting))
                may_work = self._is_resting and self.inbox.empty()
                wait_s = 0 if may_work and self._core.use_idle_time() else _IDLE_WAIT_S
                self._is_resting = True  # reset by the next command
                self.status.is_idle = True
                try:
                    command = self.inbox.get(timeout=wait_s)
                finally:
                    self.status.is_idle = False
                self._handle(command)
            while not self._is_stopped:
                self._handle(self.inbox.get_nowait())
        except queue.Empty:
            pass

    def _step(self) -> None:
        self._emit(messages.Step(self._core.step()))

    def _handle(self, command: messages.Command) -> None:
        self._is_resting = False
        self.status.last_turn = time.monotonic()
        if isinstance(command, messages.AddRequest):
            self._add(command.request)
        elif isinstance(command, messages.AbortRequests):
            self._core.abort_requests(command.request_ids)
        elif isinstance(command, messages.Call):
            self._answer(command)
        elif isinstance(command, messages.Stop):
            self._is_stopped = True

    def _add(self, request: EngineCoreRequest) -> None:
        try:
            self._core.add_request(request)
        except Exception as error:
            logger.warning("request %s was refused: %s", request.request_id, error)
            output = EngineCoreOutput(
                request_id=request.request_id, finish_reason="error", error=str(error)
            )
            self._emit(messages.Step(EngineCoreOutputs(outputs=[output], timestamp=clock.now())))

    def _answer(self, call: messages.Call) -> None:
        self.status.is_in_call = True
        try:
            value = self._core.commands[call.command](*call.args, **call.kwargs)
            self._emit(messages.Reply(call.call_id, value))
        except EngineDeadError:  # of the workers: the end of the loop answers all calls
            raise
        except ConfigError as error:
            self._emit(messages.Reply(call.call_id, error=str(error), is_config_error=True))
        except Exception as error:
            logger.exception("%s failed", call.command)
            self._emit(messages.Reply(call.call_id, error=f"{type(error).__name__}: {error}"))
        finally:
            self.status.is_in_call = False


def death_of(error: BaseException) -> messages.Dead:
    """The `Dead` event that reports `error`."""
    text = str(error).strip() or "no message"
    return messages.Dead(
        cause=f"{type(error).__name__}: {text}",
        details="".join(traceback.format_exception(error)),
        is_config_error=isinstance(error, (ConfigError, ModelError)),
    )
