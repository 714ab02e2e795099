"""`EngineCoreClient`: the one contract by which asyncio talks to an engine loop, wherever it is.

`AsyncLLM` holds one. Implementations: `ThreadHost` (a thread here) and `ProcessHost` (a process
of its own); one conformance suite holds both to this text. Knows nothing of text or tokenizers.
"""

from __future__ import annotations

import asyncio
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from quire.core.commands import AbortRequests, AddRequest, Call, Command, Reply
from quire.core.step_watch import StepObservation
from quire.errors import ConfigError, EngineDeadError, EngineGenerateError
from quire.protocol import EngineCoreOutputs, EngineCoreRequest
from quire.system.loop_mailbox import LoopMailbox

STALLED_S = 1.4
"""An engine that has not advanced for so long, for whatever reason, is not ready for more."""


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """How an engine loop is doing, as far as its client can tell."""

    state: Literal["alive", "stalled", "dead"]
    """`stalled`: it does not advance, but it may not be its fault: no core, or a slow disk.
    `dead` is final, also if the process runs again (SIGCONT): start the server again."""
    reason: str = ""
    """Why it is not alive, in a line."""


@dataclass(frozen=True, slots=True)
class EngineListener:
    """Whom the client tells. Both are called on the event loop that was attached."""

    on_outputs: Callable[[EngineCoreOutputs], None]
    on_dead: Callable[[EngineDeadError], None]
    """Called once, when the loop ends without having been told to."""


class EngineCoreClient(ABC):
    """A handle on one running engine loop. All methods but `shutdown` belong to the event loop.

    Constructing one blocks until the core is built, and raises what prevented it. Calls after the
    loop's death raise EngineDeadError with the cause.
    """

    is_other_process: bool = False
    """Whether the loop runs in another process, so that only plain values reach it."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._mailbox: LoopMailbox | None = None
        """Of that loop."""
        self._listener: EngineListener | None = None
        self._dead_cause: str | None = None
        self._call_ids = itertools.count()
        self._calls: dict[int, asyncio.Future[Any]] = {}

    def attach(self, loop: asyncio.AbstractEventLoop, listener: EngineListener) -> None:
        """From now on events go to `listener` on `loop`; may be repeated with another loop."""
        if loop is not self._loop:
            self._loop, self._mailbox = loop, LoopMailbox(loop)
        self._listener = listener

    def add_request(self, request: EngineCoreRequest) -> None:
        """Hands a request over; its outputs reach the listener."""
        self._send(AddRequest(request))

    def abort_requests(self, request_ids: list[str]) -> None:
        """Ends requests before the next step. No output of theirs follows a step later."""
        self._send(AbortRequests(request_ids))

    async def call(self, command: str, *args: Any, **kwargs: Any) -> Any:
        """Runs a command of the core between two steps and returns its value. Raises ConfigError if
        it cannot be done so, or if an argument cannot be sent; EngineGenerateError if it fails
        otherwise, or if there is none of that name."""
        call_id = next(self._call_ids)
        future = asyncio.get_running_loop().create_future()
        self._calls[call_id] = future
        try:
            self._send(Call(call_id, command, list(args), kwargs))
            return await future
        finally:
            self._calls.pop(call_id, None)

    def notify(self, command: str) -> None:
        """Has a command of the core run, and waits for nothing: what fails is not told. Any
        thread."""
        with suppress(EngineDeadError):
            self._send(Call(next(self._call_ids), command))

    @abstractmethod
    def health(self) -> EngineHealth:
        """What is known now; never blocks, callable from any thread."""

    @abstractmethod
    def shutdown(self, timeout_s: float | None = None) -> None:
        """Ends the loop and its thread or process. Idempotent.

        Blocks for `timeout_s` at most, by default some seconds; then a thread is left alone and a
        process is killed.
        """

    @abstractmethod
    def abandon(self) -> None:
        """Ends the loop and its thread or process, and waits for nothing: its owner is gone.
        Idempotent. May be called by the garbage collector, on any thread."""

    @abstractmethod
    def _deliver(self, command: Command) -> None:
        """Puts a command into the loop's inbox."""

    def _send(self, command: Command) -> None:
        if self._dead_cause is not None:
            raise EngineDeadError(self._dead_cause)
        self._deliver(command)

    # The hosts call what follows, on the thread that receives their events.

    def _post(self, callback: Callable[..., None], *args: Any) -> None:
        """Runs `callback` on the attached event loop; without one there is no caller."""
        if self._mailbox is not None:
            self._mailbox.post(callback, *args)

    def _post_outputs(self, outputs: EngineCoreOutputs) -> None:
        if self._listener is not None:
            self._post(self._listener.on_outputs, outputs)

    def _post_reply(self, reply: Reply) -> None:
        self._post(self._settle, reply)

    def _settle(self, reply: Reply) -> None:
        future = self._calls.get(reply.call_id)
        if future is None or future.done():
            return
        if reply.error is not None:
            kind = ConfigError if reply.is_config_error else EngineGenerateError
            future.set_exception(kind(reply.error))
        else:
            future.set_result(reply.value)

    def _declare_dead(self, cause: str) -> None:
        """Remembers the death and tells everyone; only the first cause counts."""
        if self._dead_cause is None:
            self._dead_cause = f"the engine has died: {cause}"
            self._post(self._tell_of_death, self._dead_cause)

    def _mark_shut_down(self) -> None:
        """From now on every call raises. Listeners are not called."""
        self._dead_cause = self._dead_cause or "the engine was shut down"

    def _tell_of_death(self, cause: str) -> None:
        for future in list(self._calls.values()):
            if not future.done():
                future.set_exception(EngineDeadError(cause))
        if self._listener is not None:
            self._listener.on_dead(EngineDeadError(cause))


def health_of(observation: StepObservation, step_timeout_s: float) -> EngineHealth:
    """What the last look at a loop says of it."""
    if observation.is_stuck:
        return EngineHealth("dead", f"a step is stuck: no progress for {observation.still_s:.1f} s")
    if observation.turn_age_s >= step_timeout_s:
        age = f"a step has been running for {observation.turn_age_s:.1f} s"
        return EngineHealth("dead", f"{age}, longer than step_timeout {step_timeout_s:g} s")
    if observation.still_s >= STALLED_S:
        return EngineHealth("stalled", f"no step has advanced for {observation.still_s:.1f} s")
    return EngineHealth("alive")
