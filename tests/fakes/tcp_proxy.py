"""A TCP proxy between a client and a server that can treat what the server says badly."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

Treatment = Callable[[bytes], "Iterable[bytes]"]
"""From what the server said to the pieces that the client gets. Raises OSError: the connection is
closed."""


class TcpProxy:
    """Use it in a `with` statement. `treat` may be replaced at any time."""

    def __init__(self, port: int, treat: Treatment = lambda data: [data]) -> None:
        self.treat = treat
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> TcpProxy:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        for one in (self._listener, *self._sockets):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join(30)

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                self._sockets += [client, server]
                self._start(self._pass_on, client, server, lambda data: [data])
                self._start(self._pass_on, server, client, lambda data: self.treat(data))

    def _pass_on(self, source: socket.socket, target: socket.socket, treat: Treatment) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                for piece in treat(data):
                    target.sendall(piece)
        for one in (source, target):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


def drip(data: bytes) -> Iterator[bytes]:
    """Byte by byte, with a pause each: no single wait is long."""
    for at in range(len(data)):
        time.sleep(0.01)
        yield data[at : at + 1]
