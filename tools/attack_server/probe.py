"""A process that asks for `/health` all the time, each time on a connection of its own.

A process, because a thread would wait for the interpreter that the attack keeps busy.
"""

from __future__ import annotations

import multiprocessing
import socket
import ssl
import time
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from types import TracebackType

_REQUEST = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
_TIMEOUT_S = 30.0
_PAUSE_S = 0.01


@dataclass(slots=True)
class Answers:
    """What the probes brought."""

    statuses: Counter[str] = field(default_factory=Counter)
    """Status codes, or the name of what went wrong."""
    seconds: list[float] = field(default_factory=list)

    def ms(self, percent: float) -> float:
        """A percentile of the times."""
        ordered = sorted(self.seconds) or [0.0]
        return 1000 * ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


class Probe:
    """A context in which the server is asked; `answers` is there after it."""

    def __init__(self, port: int, *, is_tls: bool) -> None:
        self.answers = Answers()
        self._ours, theirs = multiprocessing.Pipe()
        self._process = multiprocessing.Process(target=_ask, args=(theirs, port, is_tls))

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


def _ask(pipe: Connection, port: int, is_tls: bool) -> None:
    answers = Answers()
    context = ssl.create_default_context() if is_tls else None
    if context is not None:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    pipe.send(None)
    while not pipe.poll(_PAUSE_S):
        begin = time.monotonic()
        answers.statuses[_status(port, context)] += 1
        answers.seconds.append(time.monotonic() - begin)
    pipe.send(answers)


def _status(port: int, context: ssl.SSLContext | None) -> str:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT_S) as client:
            if context is not None:
                client = context.wrap_socket(client)
            client.sendall(_REQUEST)
            return client.recv(4096)[9:12].decode() or "closed"
    except OSError as error:
        return type(error).__name__
