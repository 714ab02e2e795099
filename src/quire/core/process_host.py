"""`ProcessHost`: runs the engine loop in its own process, reached over ZeroMQ and msgpack.

The default on many cores, because tokenising and HTTP do not compete with the step for the GIL.
Implements `EngineCoreClient`; the other side is `process_main`.
"""

from __future__ import annotations

import subprocess
import threading
from concurrent.futures import Future

import zmq

from quire.config import EngineConfig
from quire.core.client import EngineCoreClient, EngineHealth, health_of
from quire.core.messages import Command, Dead, Event, Heartbeat, Ready, Reply, Step, Stop
from quire.core.process_channel import (
    COMMANDS_SOCKET,
    EVENTS_SOCKET,
    EngineBoot,
    encoder,
    event_decoder,
    socket_address,
)
from quire.core.step_watch import StepObservation
from quire.errors import ConfigError, EngineDeadError
from quire.log import get_logger
from quire.system import clock
from quire.system.at_exit import close_at_exit, make_scratch, remove_scratch
from quire.system.child_process import wait_or_kill
from quire.system.child_python import dying_command
from quire.system.thread_states import is_stopped, thread_states

logger = get_logger(__name__)

DEFAULT_CORE = "quire.core.engine_core:EngineCore"

_POLL_MS = 200
_SILENCE_S = 1.0
"""Seconds without a heartbeat after which a stopped or sleeping process counts as dead. A process
that gets no processor time has until `step_timeout`."""
_EXIT_S = 5.0
_MAX_SOCKET_PATH = 100


class ProcessHost(EngineCoreClient):
    """Owns the process, both sockets and the thread that starts the process and listens to it.

    The kernel kills the process when that thread ends, and so when this process ends. The lock
    protects the commands socket; only the listening thread uses the events socket.
    """

    is_other_process = True

    def __init__(
        self,
        config: EngineConfig,
        step_timeout_s: float,
        core_factory: str = DEFAULT_CORE,
        given_up: threading.Event | None = None,
    ) -> None:
        """`given_up`: once set, an engine that is still starting is ended."""
        super().__init__()
        self._given_up = given_up or threading.Event()
        self._step_timeout_s = step_timeout_s
        self._is_closing = self._is_abandoned = False
        self._silent_s = 0.0
        """Seconds of listening since the last event."""
        self._exit_s = _EXIT_S
        self._observation = StepObservation()
        self._directory = _private_directory()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._commands = self._bind(zmq.PUSH, COMMANDS_SOCKET)
        self._commands_lock = threading.Lock()
        self._events = self._bind(zmq.PULL, EVENTS_SOCKET)
        self._boot = EngineBoot(core_factory=core_factory, config=config, epoch=clock.epoch())
        self._booted: Future[subprocess.Popen[bytes]] = Future()
        self._listening = threading.Thread(
            target=self._listen, name="quire-engine-events", daemon=True
        )
        self._listening.start()
        try:
            self._process = self._booted.result()
        except BaseException:
            self._is_closing = True
            self._listening.join(_EXIT_S)
            self._close_commands()
            raise
        close_at_exit(self, ProcessHost.shutdown)

    @property
    def pid(self) -> int:
        """Process id of the engine process."""
        return self._process.pid

    def health(self) -> EngineHealth:
        if self._dead_cause is not None:
            return EngineHealth("dead", self._dead_cause)
        if self._silent_s > _SILENCE_S:
            silent = f"the engine process has sent nothing for {self._silent_s:.1f} s"
            return EngineHealth("stalled", silent)
        return health_of(self._observation, self._step_timeout_s)

    def shutdown(self, timeout_s: float | None = None) -> None:
        if self._is_closing or self._is_forked:
            return
        if timeout_s is not None:
            self._exit_s = timeout_s
        self._is_closing = True
        self._deliver(Stop())
        self._listening.join(self._exit_s + _EXIT_S)
        self._close_commands()
        self._mark_shut_down()

    def abandon(self) -> None:
        self._is_abandoned = not self._is_closing  # the listening thread does the rest

    def _close_commands(self) -> None:
        with self._commands_lock:
            self._commands.close(linger=0)
        self._context.term()

    def _deliver(self, command: Command) -> None:
        data = encoder.encode(command)
        try:
            with self._commands_lock:
                if not self._commands.closed:
                    self._commands.send(data, zmq.NOBLOCK)
        except zmq.Again:
            logger.debug("the engine process is gone: %s not sent", type(command).__name__)

    def _bind(self, kind: int, name: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.set(zmq.SNDHWM, 0)
        socket.set(zmq.RCVHWM, 0)
        socket.set(zmq.LINGER, 0)
        socket.bind(socket_address(self._directory, name))
        return socket

    def _listen(self) -> None:
        """Body of the listening thread, from the start of the process to its end."""
        process: subprocess.Popen[bytes] | None = None
        try:
            process = _spawn(self._directory)
            self._await_boot(process)
            self._booted.set_result(process)
            self._receive(process)
        except BaseException as error:
            if self._booted.done():
                logger.exception("listening to the engine process failed")
                self._declare_dead(f"listening to it failed: {type(error).__name__}: {error}")
            else:
                self._booted.set_exception(error)
        finally:
            if process is not None:
                self._end(process)
            self._events.close(linger=0)
            if self._is_abandoned:
                self._close_commands()
            remove_scratch(self._directory)

    def _await_boot(self, process: subprocess.Popen[bytes]) -> None:
        """Waits until the core is built; raises what prevented it.

        The first event shows that the process has connected. It gets the boot message then, and
        the directory of the sockets is removed.
        """
        is_connected = False
        while not (self._is_closing or self._given_up.is_set()):
            event = self._next_event()
            if isinstance(event, Ready):
                return
            if isinstance(event, Dead):
                logger.debug("%s", event.details)
                raise (ConfigError if event.is_config_error else EngineDeadError)(event.cause)
            if event is not None and not is_connected:
                is_connected = True
                self._commands.send(encoder.encode(self._boot))
                remove_scratch(self._directory)
            if event is None:
                if not is_stopped(process.pid):
                    self._silent_s = 0.0  # while it imports modules it sends nothing
                if (end := self._end_of(process)) is not None:
                    raise EngineDeadError(end)
        raise EngineDeadError("shut down while the engine was starting")

    def _next_event(self) -> Event | None:
        """The next event, or None after a timeout."""
        if not self._events.poll(_POLL_MS):
            self._silent_s += _POLL_MS / 1000
            return None
        self._silent_s = 0.0
        return event_decoder.decode(self._events.recv())

    def _receive(self, process: subprocess.Popen[bytes]) -> None:
        """Passes on events and watches the process, until it is dead or shut down."""
        while self._dead_cause is None and not (self._is_closing or self._is_abandoned):
            event = self._next_event()
            if event is not None:
                self._on_event(event)
            elif (cause := self._cause_of_death(process)) is not None and not self._is_closing:
                self._declare_dead(cause)
        if self._is_abandoned:
            self._is_closing = True
            self._deliver(Stop())

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Step):
            self._post_outputs(event.outputs)
        elif isinstance(event, Reply):
            self._post_reply(event)
        elif isinstance(event, Heartbeat):
            self._observation = StepObservation(event.turn_age_s, event.still_s, event.is_stuck)
            health = health_of(self._observation, self._step_timeout_s)
            if health.state == "dead":
                self._declare_dead(health.reason)
        elif isinstance(event, Dead) and not self._is_closing:
            self._declare_dead(event.cause)

    def _cause_of_death(self, process: subprocess.Popen[bytes]) -> str | None:
        """Why a silent process counts as dead, or None while it may still send events."""
        end = self._end_of(process)
        if end is not None or self._silent_s < _SILENCE_S:
            return end
        states = thread_states(process.pid).values()
        silence = f"the engine process has sent nothing for {self._silent_s:.1f} s"
        if states and all(state.is_asleep for state in states):
            return f"{silence}, and all of its threads are asleep"
        if self._silent_s > self._step_timeout_s:
            return f"{silence}, longer than step_timeout {self._step_timeout_s:g} s"
        return None

    def _end_of(self, process: subprocess.Popen[bytes]) -> str | None:
        """Cause of the end or stop of a silent process; None if it runs."""
        if process.poll() is not None:
            return _exit_text(process.returncode)
        if self._silent_s >= _SILENCE_S and is_stopped(process.pid):
            return "the engine process was stopped by a signal (SIGSTOP)"
        return None

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """Waits for a process that was asked to stop; kills it otherwise or on timeout."""
        if self._dead_cause is None and self._booted.done() and not self._booted.exception():
            problem = wait_or_kill(process, self._exit_s)
            if problem is not None:
                logger.warning("the engine process %s: killed", problem)
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stdin is not None:
            process.stdin.close()


def _private_directory() -> str:
    try:
        directory = make_scratch()
        if len(directory) > _MAX_SOCKET_PATH - len(COMMANDS_SOCKET):
            remove_scratch(directory)
            directory = make_scratch("/tmp")
    except OSError as error:
        raise ConfigError(
            f"cannot create a directory for the engine process's sockets: {error}; set TMPDIR to a "
            "writable directory, or use --engine-mode thread"
        ) from None
    return directory


def _spawn(directory: str) -> subprocess.Popen[bytes]:
    """Starts the engine process with this interpreter and its module path.

    It gets its own session, so that Ctrl+C only reaches the front end, which stops the engine.
    """
    try:
        return subprocess.Popen(
            dying_command("quire.core.process_main", directory),
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise ConfigError(
            f"the engine process cannot be started: {error}; use --engine-mode thread"
        ) from None


def _exit_text(code: int) -> str:
    if code < 0:
        return f"the engine process was killed by signal {-code}"
    return f"the engine process ended with exit code {code}"
