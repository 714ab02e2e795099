"""`try_grammar`: compiles a grammar in a child process, which a hostile one may take with it.

Called by `GrammarTrial`, on any thread. The processes are shared by all trials of this process,
since a child needs no model; they start with the first grammars and end with this process.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
import weakref
from contextlib import suppress

import msgspec

from quire.errors import QuireError
from quire.structured.limits import MAX_TRIAL_S
from quire.structured.trials.wire import LENGTH_BYTES, TrialJob, TrialOutcome
from quire.system.child_python import module_command

MAX_PROCESSES = 2
"""A second one, so that a slow grammar does not keep all others waiting."""
_CLOCK_S = 30.0
"""Wall-clock time for a trial: on a loaded machine a child waits for a core."""
_EXIT_S = 2.0
_MOST_BYTES = 1 << 20
"""Of an outcome."""


class TrialStopped(Exception):  # noqa: N818  (no failure of ours: the grammar's)
    """The child was ended by a grammar; the message says how."""


def try_grammar(job: TrialJob) -> str:
    """What the library says against a grammar; empty if nothing. Raises TrialStopped, and
    QuireError where no child can be started."""
    with _places:
        child = _free_child()
        try:
            outcome = child.run(job)
        except BaseException:
            child.close()
            raise
        if outcome.is_last:
            child.close()
        else:
            _idle.append(child)
        return outcome.message


class _Child:
    """Owns a process and the socket to it. One job at a time."""

    def __init__(self) -> None:
        """Starts it; does not wait until it is ready. Raises QuireError."""
        self._socket, child_socket = socket.socketpair()
        with child_socket:
            try:
                self._process = subprocess.Popen(
                    module_command("quire.structured.trials.child"),
                    stdin=child_socket.fileno(),
                    stdout=child_socket.fileno(),
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,  # Ctrl+C is for the parent
                )
            except OSError as error:
                self._socket.close()
                raise QuireError(f"no process for grammars can be started: {error}") from None
        self.close = weakref.finalize(self, _end, self._process, self._socket, os.getpid())

    @property
    def is_open(self) -> bool:
        """Whether it can take a job."""
        return self._process.poll() is None

    def kill(self) -> None:
        """Ends the process, and waits until it has."""
        self._process.kill()
        self._process.wait()

    def run(self, job: TrialJob) -> TrialOutcome:
        """Raises TrialStopped and QuireError; the child is of no use then."""
        deadline = time.monotonic() + _CLOCK_S
        data = msgspec.msgpack.encode(job)
        try:
            self._socket.settimeout(_CLOCK_S)
            self._socket.sendall(len(data).to_bytes(LENGTH_BYTES, "big") + data)
            size = int.from_bytes(self._read(LENGTH_BYTES, deadline), "big")
            if size > _MOST_BYTES:
                raise OSError(f"an outcome of {size} bytes")
            return msgspec.msgpack.decode(self._read(size, deadline), type=TrialOutcome)
        except TimeoutError:
            raise TrialStopped(f"compiling it takes more than {_CLOCK_S:g} s") from None
        except (OSError, msgspec.MsgspecError) as error:
            raise self._death(error) from None

    def _read(self, size: int, deadline: float) -> bytes:
        data = bytearray()
        while len(data) < size:
            self._socket.settimeout(max(deadline - time.monotonic(), 1e-3))
            piece = self._socket.recv(size - len(data))
            if not piece:
                raise OSError("no outcome")
            data += piece
        return bytes(data)

    def _death(self, cause: Exception) -> Exception:
        """Why there is no outcome."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_EXIT_S)
        code = self._process.returncode
        if code == -signal.SIGPROF:
            return TrialStopped(f"compiling it takes more than {MAX_TRIAL_S:g} s of processor time")
        if code in (-signal.SIGSEGV, -signal.SIGBUS):
            return TrialStopped("compiling it nests too deeply")
        if code in (-signal.SIGABRT, -signal.SIGKILL):
            return TrialStopped("compiling it takes too much memory")
        return QuireError(f"the process that tries grammars has failed: {cause}, exit code {code}")


_idle: list[_Child] = []
_places = threading.BoundedSemaphore(MAX_PROCESSES)


def _free_child() -> _Child:
    """One that has ended since its last job, as the system was short of memory, is replaced."""
    while _idle:
        child = _idle.pop()
        if child.is_open:
            return child
        child.close()
    return _Child()


def _end(process: subprocess.Popen[bytes], parent_socket: socket.socket, owner: int) -> None:
    parent_socket.close()
    if os.getpid() == owner:  # a fork has the objects and not the child
        process.kill()
        process.wait()
