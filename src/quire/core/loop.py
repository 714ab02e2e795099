"""The engine loop: takes commands, steps the core, tells what came of it.

Runs on one thread, in one of two hosts: `ThreadHost` gives it a thread of the server's process,
`process.main` a process. Knows nothing of either, of asyncio or of sockets.
"""

from __future__ import annotations

import queue
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from quire.core.commands import (
    AbortRequests,
    AddRequest,
    Call,
    Command,
    Dead,
    Event,
    Reply,
    Step,
    Stop,
)
from quire.errors import ConfigError, ModelError
from quire.log import get_logger
from quire.protocol import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest
from quire.system import clock

logger = get_logger(__name__)

SWITCH_INTERVAL_S = 0.0005
"""How long a thread may keep the interpreter while another wants it, wherever a loop shares it.
Python's own 5 ms is many steps of a small model: the loop would wait so long after each step
whenever the others are busy, and they as long for every look at a loop that never ends."""
_IDLE_WAIT_S = 0.5
"""How long an idle loop sleeps before it shows again that it lives. After the first time, the core
may work ahead: what comes right after a request, in other programs too, is not disturbed."""


class SteppedCore(Protocol):
    """What a loop drives: `EngineCore`, or the fake one of the tests."""

    @property
    def commands(self) -> Mapping[str, Callable[..., Any]]:
        """What a front end may call by name between two steps; values cross process borders."""

    def add_request(self, request: EngineCoreRequest) -> None:
        """Queues a request; raises QuireError if it cannot ever run."""

    def abort_requests(self, request_ids: list[str]) -> None:
        """Ends requests; unknown ids mean nothing."""

    def has_unfinished_requests(self) -> bool:
        """Whether a step would do anything."""

    def step(self) -> EngineCoreOutputs:
        """One step: what each request gained, and a snapshot of the statistics."""

    def use_idle_time(self) -> bool:
        """Some milliseconds of work that saves later steps time. False: there is none."""

    def progress(self) -> int | None:
        """A number that changes while a step advances; None if it is not counted. Any thread."""

    def shutdown(self) -> None:
        """Releases everything."""


def _not_counted() -> int | None:
    return None


@dataclass(slots=True)
class LoopStatus:
    """Where the loop is. Written by the loop's thread, read by any other."""

    last_turn: float = field(default_factory=time.monotonic)
    """`time.monotonic()` when it last passed its top, or took a command; so does an idle loop."""
    thread_id: int | None = None
    """The system's id of its thread, once it runs."""
    progress: Callable[[], int | None] = _not_counted
    """The core's."""
    is_in_call: bool = False
    """It runs a command, which may take as long as loading a model does."""


class EngineLoop:
    """Drives one core from an inbox of commands until told to stop, or until the core fails.

    Invariant: an exception out of `step` ends the loop, with one `Dead` event and no other after
    it; an exception out of a single request's admission ends only that request. `run` belongs
    to one thread; `inbox` and `status` may be touched from any.
    """

    def __init__(
        self, core: SteppedCore, emit: Callable[[Event], None], status: LoopStatus | None = None
    ) -> None:
        self.inbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self.status = status or LoopStatus()
        self.status.last_turn = time.monotonic()
        self.status.progress = core.progress
        self.failure: BaseException | None = None
        """What ended the loop, unless it was told to stop."""
        self._core = core
        self._emit = emit
        self._is_stopped = False
        self._is_resting = False
        """Nobody has asked for anything for a while."""

    def run(self) -> None:
        """Loops until a `Stop`, or until the core raises; never raises itself."""
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
        """Obeys all commands there are; with nothing to step, sleeps until one comes."""
        self.status.last_turn = time.monotonic()
        try:
            if not self._has_work():
                may_work = self._is_resting and self.inbox.empty()
                wait_s = 0 if may_work and self._core.use_idle_time() else _IDLE_WAIT_S
                self._is_resting = True  # unless a command comes meanwhile
                self._handle(self.inbox.get(timeout=wait_s))
            while not self._is_stopped:
                self._handle(self.inbox.get_nowait())
        except queue.Empty:
            pass

    def _step(self) -> None:
        self._emit(Step(self._core.step()))

    def _handle(self, command: Command) -> None:
        self._is_resting = False
        self.status.last_turn = time.monotonic()
        if isinstance(command, AddRequest):
            self._add(command.request)
        elif isinstance(command, AbortRequests):
            self._core.abort_requests(command.request_ids)
        elif isinstance(command, Call):
            self._answer(command)
        elif isinstance(command, Stop):
            self._is_stopped = True

    def _add(self, request: EngineCoreRequest) -> None:
        try:
            self._core.add_request(request)
        except Exception as error:
            logger.warning("request %s was refused: %s", request.request_id, error)
            output = EngineCoreOutput(
                request_id=request.request_id, finish_reason="error", error=str(error)
            )
            self._emit(Step(EngineCoreOutputs(outputs=[output], timestamp=clock.now())))

    def _answer(self, call: Call) -> None:
        self.status.is_in_call = True
        try:
            value = self._core.commands[call.command](*call.args, **call.kwargs)
            self._emit(Reply(call.call_id, value))
        except ConfigError as error:
            self._emit(Reply(call.call_id, error=str(error), is_config_error=True))
        except Exception as error:
            logger.exception("%s failed", call.command)
            self._emit(Reply(call.call_id, error=f"{type(error).__name__}: {error}"))
        finally:
            self.status.is_in_call = False


def death_of(error: BaseException) -> Dead:
    """The `Dead` event that tells of `error`."""
    text = str(error).strip() or "no message"
    return Dead(
        cause=f"{type(error).__name__}: {text}",
        details="".join(traceback.format_exception(error)),
        is_config_error=isinstance(error, (ConfigError, ModelError)),
    )
