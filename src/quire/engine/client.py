"""`EngineCoreClient`: the one contract by which asyncio talks to an engine loop, wherever it is.

`AsyncLLM` holds one. Implementations: `ThreadHome` (a thread here) and `ProcessHome` (a process
of its own); one conformance suite holds both to this text. Knows nothing of text or tokenizers.
"""

from __future__ import annotations

import asyncio
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from quire.engine.wire import AbortRequests, AddRequest, Call, CallMethod, Command, Reply
from quire.errors import EngineDeadError, EngineGenerateError
from quire.protocol import EngineCoreOutputs, EngineCoreRequest

STALL_FLOOR_S = 1.8
"""A step younger than this never counts as stalled."""
STALL_FACTOR = 3.0
"""Nor does one younger than this many times the longest step so far."""


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """How an engine loop is doing, as far as its client can tell."""

    state: Literal["alive", "stalled", "dead"]
    """`stalled`: no sign of life lately, but no proof of death either."""
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

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listener: EngineListener | None = None
        self._dead_cause: str | None = None
        self._call_ids = itertools.count()
        self._calls: dict[int, asyncio.Future[Any]] = {}

    def attach(self, loop: asyncio.AbstractEventLoop, listener: EngineListener) -> None:
        """From now on events go to `listener` on `loop`; may be repeated with another loop."""
        self._loop, self._listener = loop, listener

    def add_request(self, request: EngineCoreRequest) -> None:
        """Hands a request over; its outputs reach the listener."""
        self._send(AddRequest(request))

    def abort_requests(self, request_ids: list[str]) -> None:
        """Ends requests before the next step. No output of theirs follows a step later."""
        self._send(AbortRequests(request_ids))

    async def call(self, method: CallMethod) -> Any:
        """Runs a method of the loop between two steps and returns its value."""
        call_id = next(self._call_ids)
        future = asyncio.get_running_loop().create_future()
        self._calls[call_id] = future
        try:
            self._send(Call(call_id, method))
            return await future
        finally:
            self._calls.pop(call_id, None)

    @abstractmethod
    def health(self) -> EngineHealth:
        """What is known now; never blocks, callable from any thread."""

    @abstractmethod
    def shutdown(self) -> None:
        """Ends the loop and releases its home; blocks for some seconds at most. Idempotent."""

    @abstractmethod
    def _deliver(self, command: Command) -> None:
        """Puts a command into the loop's inbox."""

    def _send(self, command: Command) -> None:
        if self._dead_cause is not None:
            raise EngineDeadError(self._dead_cause)
        self._deliver(command)

    # What follows is called by the homes, on whatever thread their news comes in.

    def _post(self, callback: Callable[..., None], *args: Any) -> None:
        """Runs `callback` on the attached event loop; without one nobody waits for the news."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(callback, *args)

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
            future.set_exception(EngineGenerateError(reply.error))
        else:
            future.set_result(reply.value)

    def _declare_dead(self, cause: str) -> None:
        """Remembers the death and tells everyone; only the first cause counts."""
        if self._dead_cause is None:
            self._dead_cause = f"the engine has died: {cause}"
            self._post(self._tell_of_death, self._dead_cause)

    def _mark_shut_down(self) -> None:
        """From now on the client refuses to work; nobody is told, since nobody should wait."""
        self._dead_cause = self._dead_cause or "the engine was shut down"

    def _tell_of_death(self, cause: str) -> None:
        for future in list(self._calls.values()):
            if not future.done():
                future.set_exception(EngineDeadError(cause))
        if self._listener is not None:
            self._listener.on_dead(EngineDeadError(cause))


def judge_turn(turn_age_s: float, longest_step_s: float, step_timeout_s: float) -> EngineHealth:
    """Whether a loop that last passed its top `turn_age_s` ago is still believed in."""
    if turn_age_s < max(STALL_FLOOR_S, STALL_FACTOR * longest_step_s):
        return EngineHealth("alive")
    reason = f"a step has been running for {turn_age_s:.1f} s"
    if turn_age_s < step_timeout_s:
        return EngineHealth("stalled", reason)
    return EngineHealth("dead", f"{reason}, longer than step_timeout {step_timeout_s:g} s")
