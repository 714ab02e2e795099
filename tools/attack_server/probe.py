"""A process that asks for `/health` all the time, each time on a connection of its own.

A process, because a thread would wait for the interpreter that the attack keeps busy.

Attackers, server and probe share the machine's processors. So, besides the time of each answer, the
probe takes two others:

- the server's: until the reply has arrived in the system's buffer, with the system's time stamp of
  that moment. The probe may read it later, when it gets a processor. Not known with TLS.
- the server's own: without the time in which the probe and the server's event loop waited for a
  processor (`/proc/.../schedstat`). On a machine that does nothing else it is nearly the same.
"""

from __future__ import annotations

import multiprocessing
import socket
import ssl
import struct
import time
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType

_REQUEST = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
_TIMEOUT_S = 30.0
_PAUSE_S = 0.01
_SO_TIMESTAMPNS = 35
"""Linux's socket option that reports when bytes arrived; also the level and kind of its message."""
_TIMESPEC = struct.Struct("@ll")
_SCHEDSTAT = "/proc/%d/task/%d/schedstat"


@dataclass(slots=True)
class Answers:
    """Answers to the probes."""

    statuses: Counter[str] = field(default_factory=Counter)
    """Status codes, or the name of what went wrong."""
    seconds: list[float] = field(default_factory=list)
    server_seconds: list[float] = field(default_factory=list)
    """The same until the replies arrived."""
    own_seconds: list[float] = field(default_factory=list)
    """The same without the waits for a processor."""

    def ms(self, percent: float) -> float:
        """A percentile of the times."""
        ordered = sorted(self.seconds) or [0.0]
        return 1000 * ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]

    @property
    def server_ms(self) -> float:
        """The longest time until a reply arrived."""
        return 1000 * max(self.server_seconds, default=0.0)

    @property
    def own_ms(self) -> float:
        """The longest time without waits for a processor."""
        return 1000 * max(self.own_seconds, default=0.0)


class Probe:
    """A context in which the server is asked; `answers` is there after it."""

    def __init__(self, port: int, pid: int, *, is_tls: bool) -> None:
        """`pid`: the server's."""
        self.answers = Answers()
        self._ours, theirs = multiprocessing.Pipe()
        self._process = multiprocessing.Process(target=_ask, args=(theirs, port, pid, is_tls))

    def __enter__(self) -> Probe:
        self._process.start()
        self._ours.recv()  # it has begun
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ours.send(None)
        self.answers = self._ours.recv()
        self._process.join()


def _ask(pipe: Connection, port: int, pid: int, is_tls: bool) -> None:
    answers = Answers()
    context = ssl.create_default_context() if is_tls else None
    if context is not None:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    pipe.send(None)
    while not pipe.poll(_PAUSE_S):
        waited_s, begin = _waited_s(pid), time.monotonic()
        status, idle_s = _answer(port, context)
        seconds = time.monotonic() - begin
        answers.statuses[status] += 1
        answers.seconds.append(seconds)
        answers.server_seconds.append(max(0.0, seconds - idle_s))
        answers.own_seconds.append(max(0.0, seconds - _waited_s(pid) + waited_s))
    pipe.send(answers)


def _waited_s(pid: int) -> float:
    """Seconds for which this process and a server's main thread, which runs its event loop, have
    waited for a processor. 0 if the system does not say."""
    try:
        texts = [
            Path(path).read_text() for path in ("/proc/self/schedstat", _SCHEDSTAT % (pid, pid))
        ]
    except OSError:
        return 0.0
    return sum(int(text.split()[1]) for text in texts) / 1e9


def _answer(port: int, context: ssl.SSLContext | None) -> tuple[str, float]:
    """The status of a reply, and for how long it was there before it was read, in seconds."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT_S) as client:
            if context is not None:
                client = context.wrap_socket(client)
                client.sendall(_REQUEST)
                return client.recv(4096)[9:12].decode() or "closed", 0.0
            client.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
            client.sendall(_REQUEST)
            data, notes, _, _ = client.recvmsg(4096, socket.CMSG_SPACE(_TIMESPEC.size))
            return data[9:12].decode() or "closed", _age_s(notes)
    except OSError as error:
        return type(error).__name__, 0.0


def _age_s(notes: list[tuple[int, int, bytes]]) -> float:
    """Age of received bytes in seconds, by the system's timestamp; 0 without a timestamp."""
    for level, kind, data in notes:
        if (level, kind) == (socket.SOL_SOCKET, _SO_TIMESTAMPNS) and len(data) >= _TIMESPEC.size:
            seconds, nanoseconds = _TIMESPEC.unpack_from(data)
            return max(0.0, time.time() - seconds - nanoseconds / 1e9)
    return 0.0
