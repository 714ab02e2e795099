"""The engine process: builds a core and runs its loop for one front end over two sockets.

Started by `ProcessHost` only. It never outlives its front end: the kernel kills it when the thread
that started it ends, and a watching thread ends it when the pipe on its standard input closes.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from importlib import import_module
from typing import Any

import zmq

from quire.core.loop import SWITCH_INTERVAL_S, EngineLoop, LoopStatus, SteppedCore, death_of
from quire.core.messages import Event, Heartbeat, Ready, Stop
from quire.core.process_channel import (
    COMMANDS_SOCKET,
    EVENTS_SOCKET,
    boot_decoder,
    command_decoder,
    encoder,
    socket_address,
)
from quire.core.step_watch import WATCH_INTERVAL_S, StepObservation, StepWatch
from quire.log import configure, get_logger, unblock_stderr
from quire.system import clock

logger = get_logger(__name__)

_FLUSH_MS = 2000
_POLL_MS = 200


def main(directory: str) -> int:
    """Serves until a `Stop` command; returns the exit code: 0, or 1 if the engine failed."""
    threading.Thread(target=_watch_stdin, daemon=True).start()
    unblock_stderr()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the front end decides when this process ends
    context = zmq.Context(io_threads=1)
    inbox = context.socket(zmq.PULL)
    inbox.connect(socket_address(directory, COMMANDS_SOCKET))
    outbox = _Outbox(context, socket_address(directory, EVENTS_SOCKET))
    try:
        return _serve(inbox, outbox)
    finally:
        inbox.close(linger=0)
        outbox.close()
        context.term()


def _serve(inbox: zmq.Socket[bytes], outbox: _Outbox) -> int:
    status = LoopStatus()
    threading.Thread(target=_send_heartbeats, args=(outbox, status), daemon=True).start()
    try:
        boot = boot_decoder.decode(inbox.recv())
        clock.set_epoch(boot.epoch)
        observability = boot.config.observability
        configure(observability.log_level, observability.log_config_file)
        core = _factory(boot.core_factory)(boot.config)
    except Exception as error:
        outbox.send(death_of(error))
        return 1
    return _run_loop(core, inbox, outbox, status)


def _run_loop(
    core: SteppedCore, inbox: zmq.Socket[bytes], outbox: _Outbox, status: LoopStatus
) -> int:
    loop = EngineLoop(core, outbox.send, status)
    has_ended = threading.Event()

    def receive() -> None:
        """Owns the socket while it runs. Reports errors, because the loop would wait for ever."""
        try:
            while not has_ended.is_set():
                if inbox.poll(_POLL_MS):
                    loop.inbox.put(command_decoder.decode(inbox.recv()))
        except Exception as error:
            outbox.send(death_of(error))
            loop.inbox.put(Stop())

    outbox.send(Ready())
    receiver = threading.Thread(target=receive, daemon=True)
    receiver.start()
    loop.run()
    has_ended.set()
    receiver.join()
    return 0 if loop.failure is None else 1


def _factory(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def _send_heartbeats(outbox: _Outbox, status: LoopStatus) -> None:
    """Sends regular heartbeats with the state of the loop."""
    watch = StepWatch(status)
    while True:
        observation = StepObservation() if status.thread_id is None else watch.look()
        outbox.send(Heartbeat(observation.turn_age_s, observation.still_s, observation.is_stuck))
        time.sleep(WATCH_INTERVAL_S)


def _watch_stdin() -> None:
    """Ends the process when standard input closes. The front end never writes to this pipe."""
    while os.read(0, 1):
        pass
    os._exit(1)


class _Outbox:
    """The events socket, safe for the two threads that send: the loop's and the heartbeat's."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str) -> None:
        self._lock = threading.Lock()
        self._socket = context.socket(zmq.PUSH)
        self._socket.set(zmq.SNDHWM, 0)
        self._socket.connect(address)
        self._is_closed = False

    def send(self, event: Event) -> None:
        """Queues an event; never blocks on the front end."""
        data = encoder.encode(event)
        with self._lock:
            if not self._is_closed:
                self._socket.send(data)

    def close(self) -> None:
        """Closes the socket, after waiting a moment for queued events to be sent."""
        with self._lock:
            self._is_closed = True
            self._socket.close(linger=_FLUSH_MS)
