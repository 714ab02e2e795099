"""`ChildProcess`: the parent's side of a child process that may die or hang.

Chat templates, grammars and tokenizers run in such children, because hostile input can end or hang
the code that reads it. The child is not trusted: a reply that is late or malformed ends it. Its
side is `child_serving`. Does not know what the child computes. `wait_or_kill` is for all children.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

from quire.system.thread_states import is_stopped

_HEAD_BYTES = 5
"""The head of a reply: its kind, and the length of its payload."""
_READ_BYTES = 1 << 18
STOPPED_S = 0.6
"""A child that a signal has stopped for so long, while this process ran, is given up."""
WATCH_S = 0.1


_STOPPED = "was stopped by a signal (SIGSTOP)"


class StoppedError(OSError):
    """A signal has stopped the child."""

    def __init__(self) -> None:
        super().__init__(_STOPPED)


class StopWatch:
    """Looks every `WATCH_S` whether a signal has stopped a process. It counts looks, because time
    in which this process does not run must not count."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._stopped_s = 0.0

    def look(self) -> bool:
        """Whether the process has been stopped for longer than `STOPPED_S`."""
        self._stopped_s = self._stopped_s + WATCH_S if is_stopped(self._pid) else 0.0
        return self._stopped_s > STOPPED_S


class Reply:
    """A reply as it arrives. Malformed bytes raise ValueError."""

    def __init__(self, kinds: bytes, max_bytes: int) -> None:
        """`kinds`: the upper-case letters that a reply may begin with."""
        self.num_wanted = _READ_BYTES
        """Most bytes to read next; 0 once the reply is complete."""
        self.is_last = False
        """Whether the child ends after this reply."""
        self.kind, self.payload = b"", bytearray()
        self._kinds, self._max_bytes = kinds, max_bytes
        self._data = bytearray()

    def add(self, piece: bytes) -> None:
        """Raises OSError if the child has ended, ValueError for a malformed reply."""
        if not piece:
            raise OSError("no reply")
        self._data += piece
        if len(self._data) < _HEAD_BYTES:
            self.num_wanted = _READ_BYTES
            return
        kind, size = bytes(self._data[:1]), int.from_bytes(self._data[1:_HEAD_BYTES], "big")
        if kind.upper() not in self._kinds or size > self._max_bytes:
            raise ValueError(f"a reply of kind {kind!r} and {size} bytes")
        self.num_wanted = min(_HEAD_BYTES + size - len(self._data), _READ_BYTES)
        if self.num_wanted < 0:
            raise ValueError("bytes after the end of the reply")
        if self.num_wanted == 0:
            self.kind, self.is_last = kind.upper(), kind.islower()
            self.payload = self._data[_HEAD_BYTES:]


def encoded_job(data: bytes) -> bytes:
    """A job as `child_serving.serve` reads it."""
    return len(data).to_bytes(4, "big") + data


class ChildProcess:
    """Owns the child and the socket to it. One job at a time.

    The child ends with `close`, with this object, and with this process, even if that is killed.
    """

    def __init__(
        self,
        command: Sequence[str],
        kinds: bytes,
        max_reply_bytes: int,
        *,
        stderr: int | IO[Any] = subprocess.DEVNULL,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
    ) -> None:
        """Starts the child; does not wait until it is ready. Raises OSError."""
        self._reply_form = kinds, max_reply_bytes
        self.socket, child_socket = socket.socketpair()
        with child_socket:
            try:
                self._process = subprocess.Popen(
                    command,
                    stdin=child_socket.fileno(),
                    stdout=child_socket.fileno(),
                    stderr=stderr,
                    env=env,
                    cwd=cwd,
                    start_new_session=True,  # Ctrl+C is for the parent
                )
            except OSError:
                self.socket.close()
                raise
        self._finalizer = weakref.finalize(self, _end, self._process, self.socket, os.getpid())

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    @property
    def is_open(self) -> bool:
        """Whether it can take another job."""
        return self._finalizer.alive and self._process.poll() is None

    def new_reply(self) -> Reply:
        """An empty reply, for a caller that reads the socket itself."""
        return Reply(*self._reply_form)

    def ask(self, job: bytes, deadline: float) -> Reply:
        """Sends an encoded job and returns the reply to it. Closes the child after its last reply.

        Raises TimeoutError at the deadline (`time.monotonic`), StoppedError if a signal stops the
        child, other OSErrors if it ends, and ValueError for a malformed reply: the caller then
        closes the child.
        """
        self.socket.setblocking(False)
        unsent = memoryview(job)
        while unsent:
            self._wait(select.POLLOUT, deadline)
            unsent = unsent[self.socket.send(unsent) :]
        reply = self.new_reply()
        while reply.num_wanted:
            self._wait(select.POLLIN, deadline)
            reply.add(self.socket.recv(reply.num_wanted))
        if reply.is_last:
            self.close()
        return reply

    def _wait(self, event: int, deadline: float) -> None:
        """Waits until the socket can be read or written."""
        watch, poll = StopWatch(self.pid), select.poll()
        poll.register(self.socket, event)
        while not poll.poll(1000 * min(WATCH_S, _left_s(deadline))):
            if watch.look():
                raise StoppedError

    def kill(self) -> None:
        """Ends the child at once; a caller that waits for its reply gets an error. Any thread may
        call it."""
        self._process.kill()

    def exit_code(self, wait_s: float) -> int:
        """Closes the child, after waiting up to `wait_s` for it to end. Negative: the signal that
        ended it."""
        with suppress(subprocess.TimeoutExpired):  # then `close` kills it
            self._process.wait(wait_s)
        self.close()
        return self._process.returncode

    def close(self) -> None:
        """Ends the child and frees the socket. Idempotent."""
        self._finalizer()


def _left_s(deadline: float) -> float:
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s


def _end(process: subprocess.Popen[bytes], parent_socket: socket.socket, owner: int) -> None:
    if os.getpid() == owner:  # a fork has copies of the objects, but the child is not its own
        process.kill()
        process.wait()
    parent_socket.close()


def wait_or_kill(process: subprocess.Popen[bytes], timeout_s: float) -> str | None:
    """Waits for a child to end. Kills it after this time, or if a signal has stopped it; then the
    result says what was wrong with it."""
    until, watch = time.monotonic() + timeout_s, StopWatch(process.pid)
    problem = None
    while problem is None:
        try:
            process.wait(WATCH_S)
            return None
        except subprocess.TimeoutExpired:
            if watch.look():
                problem = _STOPPED
            elif time.monotonic() > until:
                problem = f"did not end in {timeout_s:g} s"
    process.kill()
    process.wait()
    return problem
