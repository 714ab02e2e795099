"""`EngineCoreClient`: the interface between asyncio code and an engine loop in any host; and
`ThreadHost`, the host of few cores.

`AsyncLLM` holds one. Implementations: `ThreadHost` (a thread of this process) and `ProcessHost` (a
separate process); one conformance suite tests both. Knows no text and no tokenizers.
"""

from __future__ import annotations

import asyncio
import itertools
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from quire.core import messages
from quire.core.loop import EngineLoop, SteppedCore
from quire.core.step_watch import WATCH_INTERVAL_S, StepObservation, StepWatch
from quire.errors import ConfigError, EngineDeadError, EngineGenerateError
from quire.log import get_logger
from quire.protocol import EngineCoreOutputs, EngineCoreRequest
from quire.system.at_exit import FORKED, close_at_exit, in_forked_child
from quire.system.turn_queue import LoopMailbox

STALLED_S = 1.4
"""After this time without progress, for any reason, an engine is not ready for more requests."""


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """State of an engine loop, as far as its client knows."""

    state: Literal["alive", "stalled", "dead"]
    """`stalled`: it does not advance, perhaps for lack of a CPU core or because of a slow disk.
    `dead` is final, even if the process runs again (SIGCONT): restart the server."""
    reason: str = ""
    """Why it is not alive, in one line."""


@dataclass(frozen=True, slots=True)
class EngineListener:
    """Callbacks for engine events. All are called on the attached event loop."""

    on_outputs: Callable[[EngineCoreOutputs], None]
    on_dead: Callable[[EngineDeadError], None]
    """Called once, if the engine loop ends without a `shutdown`, also if that was before the client
    was attached."""
    on_lost: Callable[[list[str], EngineDeadError], object] = lambda _ids, _error: None
    """Called with the core requests of an engine that has died and is started again."""


class EngineCoreClient(ABC):
    """A handle on one running engine loop. Call methods on the event loop, except where a method
    says otherwise; `shutdown` may be called on any thread.

    The constructor blocks until the core is built, and raises what prevented it. Calls after the
    death of the engine loop raise EngineDeadError with the cause.
    """

    is_other_process: bool = False
    """Whether the loop runs in another process, so that arguments must be plain values."""

    num_restarts: int = 0
    """Engines that died and were started again."""

    @property
    def num_engines(self) -> int:
        """Engines that compute requests."""
        return 1

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._mailbox: LoopMailbox | None = None
        """Mailbox of `_loop`."""
        self._listener: EngineListener | None = None
        self._dead_cause: str | None = None
        self._is_end_known = False
        """Whether the listener was called, or need not be."""
        self._call_ids = itertools.count()
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._is_forked = False
        """Whether this is a copy in a forked child: the loop belongs to the other process."""
        in_forked_child(self, EngineCoreClient._mark_forked)

    def attach(self, loop: asyncio.AbstractEventLoop, listener: EngineListener) -> None:
        """Sends events to `listener` on `loop` from now on; may be repeated with another loop."""
        if loop is not self._loop:
            self._loop, self._mailbox = loop, LoopMailbox(loop)
        self._listener = listener
        if self._dead_cause is not None:
            self._post(self._report_death, self._dead_cause)

    def add_request(self, request: EngineCoreRequest) -> None:
        """Submits a request; the listener gets its outputs."""
        self._send(messages.AddRequest(request))

    def block_keys(self, request: EngineCoreRequest) -> list[bytes]:
        """The keys of the prompt's full blocks if a choice between engines needs them, otherwise
        none. They take time that grows with the prompt. Any thread."""
        del request
        return []

    def abort_requests(self, request_ids: list[str]) -> None:
        """Ends requests before the next step; later steps send no output for them."""
        self._send(messages.AbortRequests(request_ids))

    async def call(self, command: str, *args: Any, **kwargs: Any) -> Any:
        """Runs a command of the core between two steps and returns its value. Raises ConfigError if
        the command rejects its arguments or one cannot be sent; EngineGenerateError if the
        command fails otherwise or does not exist."""
        call_id = next(self._call_ids)
        future = asyncio.get_running_loop().create_future()
        self._calls[call_id] = future
        try:
            self._send(messages.Call(call_id, command, list(args), kwargs))
            return await future
        finally:
            self._calls.pop(call_id, None)

    def notify(self, command: str, *args: Any) -> None:
        """Runs a command of the core without waiting for it; errors are not reported. Any
        thread."""
        with suppress(EngineDeadError):
            self._send(messages.Call(next(self._call_ids), command, list(args)))

    @abstractmethod
    def health(self) -> EngineHealth:
        """The state that is known now. Never blocks. Any thread."""

    @abstractmethod
    def shutdown(self, timeout_s: float | None = None) -> None:
        """Ends the loop and its thread or process. Idempotent.

        Blocks for at most `timeout_s`, by default some seconds; after that, a thread is left
        running and a process is killed.
        """

    @abstractmethod
    def abandon(self) -> None:
        """Ends the loop and its thread or process without waiting, after its owner was dropped.
        Idempotent. May be called by the garbage collector, on any thread."""

    @abstractmethod
    def _deliver(self, command: messages.Command) -> None:
        """Puts a command into the loop's inbox."""

    def _send(self, command: messages.Command) -> None:
        if self._dead_cause is not None:
            raise EngineDeadError(self._dead_cause)
        self._deliver(command)

    # Hosts call the following methods on the thread that receives their events.

    def _post(self, callback: Callable[..., None], *args: Any) -> None:
        """Runs `callback` on the attached event loop; without one, does nothing."""
        if self._mailbox is not None:
            self._mailbox.post(callback, *args)

    def _post_outputs(self, outputs: EngineCoreOutputs) -> None:
        if self._listener is not None:
            self._post(self._listener.on_outputs, outputs)

    def _post_reply(self, reply: messages.Reply) -> None:
        self._post(self._settle, reply)

    def _settle(self, reply: messages.Reply) -> None:
        future = self._calls.get(reply.call_id)
        if future is None or future.done():
            return
        if reply.error is not None:
            kind = ConfigError if reply.is_config_error else EngineGenerateError
            future.set_exception(kind(reply.error))
        else:
            future.set_result(reply.value)

    def _declare_dead(self, cause: str) -> None:
        """Records the death of the engine and notifies all callers; only the first cause is
        kept."""
        if self._dead_cause is None:
            self._dead_cause = f"the engine has died: {cause}"
            self._post(self._report_death, self._dead_cause)

    def _mark_shut_down(self) -> None:
        """Makes every later call raise. Listeners are not called."""
        self._is_end_known = True
        self._dead_cause = self._dead_cause or "the engine was shut down"

    def _mark_forked(self) -> None:
        self._is_forked = True
        self._dead_cause = FORKED

    def _report_death(self, cause: str) -> None:
        for future in list(self._calls.values()):
            if not future.done():
                future.set_exception(EngineDeadError(cause))
        if self._listener is not None and not self._is_end_known:
            self._is_end_known = True
            self._listener.on_dead(EngineDeadError(cause))


def health_of(observation: StepObservation, step_timeout_s: float) -> EngineHealth:
    """The health of a loop according to its last observation."""
    if observation.is_stuck:
        return EngineHealth("dead", f"a step is stuck: no progress for {observation.still_s:.1f} s")
    if observation.turn_age_s >= step_timeout_s:
        age = f"a step has been running for {observation.turn_age_s:.1f} s"
        return EngineHealth("dead", f"{age}, longer than step_timeout {step_timeout_s:g} s")
    if observation.still_s >= STALLED_S:
        return EngineHealth("stalled", f"no step has advanced for {observation.still_s:.1f} s")
    return EngineHealth("alive")


logger = get_logger(__name__)

_JOIN_S = 5.0
_DEAD_JOIN_S = 0.5
"""Short, because a failed thread ends at once and a stuck one never."""


class ThreadHost(EngineCoreClient):
    """Runs the engine loop on a thread of this process, next to the event loop. The default on few
    cores: the native step releases the GIL, messages are not copied, and no process is started.

    Owns two threads: one builds the core, steps it and shuts it down; the other watches it.
    """

    def __init__(self, make_core: Callable[[], SteppedCore], step_timeout_s: float) -> None:
        super().__init__()
        self._step_timeout_s = step_timeout_s
        self._make_core = make_core
        self._is_closing = False
        self._booted: Future[EngineLoop] = Future()
        self._thread = threading.Thread(target=self._run, name="quire-engine", daemon=True)
        try:
            self._thread.start()
            self._engine_loop = self._booted.result()
        except BaseException:  # such as Ctrl+C: the engine ends once it has started
            self._booted.add_done_callback(_stop)
            raise
        self._observation = StepObservation()
        self._over: queue.SimpleQueue[None] = queue.SimpleQueue()
        """An item ends the watching thread. Unlike an Event, the garbage collector may set it."""
        close_at_exit(self, ThreadHost.shutdown)
        self._watching = threading.Thread(target=self._watch, name="quire-watch", daemon=True)
        self._watching.start()

    def _run(self) -> None:
        """Body of the engine thread: builds the core and runs its loop."""
        try:
            loop = EngineLoop(self._make_core(), self._on_event)
        except BaseException as error:
            self._booted.set_exception(error)
            return
        self._booted.set_result(loop)
        loop.run()

    def _watch(self) -> None:
        """Body of the watching thread, until the engine is dead or shut down."""
        watch = StepWatch(self._engine_loop.status)
        while self._dead_cause is None:
            with suppress(queue.Empty):
                self._over.get(timeout=WATCH_INTERVAL_S)
                return
            self._observation = watch.look()
            health = health_of(self._observation, self._step_timeout_s)
            if health.state == "dead" and not self._is_closing:
                self._declare_dead(health.reason)

    def health(self) -> EngineHealth:
        if self._dead_cause is not None:
            return EngineHealth("dead", self._dead_cause)
        if not self._thread.is_alive():
            return EngineHealth("dead", "the engine thread has ended")
        return health_of(self._observation, self._step_timeout_s)

    def shutdown(self, timeout_s: float | None = None) -> None:
        self.abandon()
        self._watching.join(_JOIN_S)
        if threading.current_thread() is not self._thread:
            join_s = _JOIN_S if timeout_s is None else timeout_s
            self._thread.join(join_s if self._dead_cause is None else _DEAD_JOIN_S)
            if self._thread.is_alive():
                logger.warning("the engine thread is still inside a step; it ends with the process")
        self._mark_shut_down()

    def abandon(self) -> None:
        self._is_closing = True
        self._over.put(None)
        self._engine_loop.inbox.put(messages.Stop())

    def _deliver(self, command: messages.Command) -> None:
        self._engine_loop.inbox.put(command)

    def _on_event(self, event: messages.Event) -> None:
        """Called on the engine thread."""
        if isinstance(event, messages.Step):
            self._post_outputs(event.outputs)
        elif isinstance(event, messages.Reply):
            self._post_reply(event)
        elif isinstance(event, messages.Dead) and not self._is_closing:
            self._declare_dead(event.cause)


def _stop(booted: Future[EngineLoop]) -> None:
    if booted.exception() is None:
        booted.result().inbox.put(messages.Stop())
