"""`ThreadHost`: runs the engine loop on a thread of this process, next to the event loop.

The default on few cores: the native step releases the GIL, messages are not copied, and no process
has to be started. Chosen by `hosts.make_client`; implements `EngineCoreClient`.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress

from quire.core.client import EngineCoreClient, EngineHealth, health_of
from quire.core.loop import Command, Dead, EngineLoop, Event, Reply, Step, SteppedCore, Stop
from quire.core.step_watch import WATCH_INTERVAL_S, StepObservation, StepWatch
from quire.log import get_logger
from quire.system.at_exit import close_at_exit

logger = get_logger(__name__)

_JOIN_S = 5.0
_DEAD_JOIN_S = 0.5
"""Short, because a failed thread ends at once and a stuck one never."""


class ThreadHost(EngineCoreClient):
    """Owns two threads: one builds the core, steps it and shuts it down; the other watches it."""

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
        self._engine_loop.inbox.put(Stop())

    def _deliver(self, command: Command) -> None:
        self._engine_loop.inbox.put(command)

    def _on_event(self, event: Event) -> None:
        """Called on the engine thread."""
        if isinstance(event, Step):
            self._post_outputs(event.outputs)
        elif isinstance(event, Reply):
            self._post_reply(event)
        elif isinstance(event, Dead) and not self._is_closing:
            self._declare_dead(event.cause)


def _stop(booted: Future[EngineLoop]) -> None:
    if booted.exception() is None:
        booted.result().inbox.put(Stop())
