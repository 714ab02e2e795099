"""`Door`: accepts the connections of an engine's other machines, each for a purpose."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress

from quire.errors import ConfigError, RankError
from quire.executor.nodes.handshake import welcome
from quire.executor.nodes.tls import tls_context

_BACKLOG = 64
_MOST_GREETINGS = 64
"""Most connections that are being accepted at once."""


class Door:
    """A listening socket, with a thread that accepts connections that know the key."""

    def __init__(self, host: str, port: int, key: bytes) -> None:
        """`port` 0: any. Raises ConfigError, also for certificates that cannot be read."""
        tls_context(accepts=True)
        self._key = key
        self._arrived: dict[bytes, socket.socket] = {}
        self._changed = threading.Condition()
        self._places = threading.Semaphore(_MOST_GREETINGS)
        try:
            self._listening = socket.create_server((host, port), backlog=_BACKLOG)
        except OSError as error:
            raise ConfigError(
                f"{host}:{port} cannot be listened on: {error}; set master_addr to an address of "
                "this machine and master_port to a free port"
            ) from None
        self.host, self.port = self._listening.getsockname()[:2]
        self._is_open = True
        threading.Thread(target=self._accept, name="quire-door", daemon=True).start()

    def take(self, purpose: bytes, until: float) -> socket.socket:
        """A connection with this purpose; waits for it until a time of `time.monotonic`. Raises
        RankError."""
        with self._changed:
            while purpose not in self._arrived:
                left = until - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    raise RankError(f"{purpose.decode()} has not connected to port {self.port}")
            return self._arrived.pop(purpose)

    def close(self) -> None:
        """Accepts nothing more. Idempotent."""
        self._is_open = False
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        with self._changed:
            for one in self._arrived.values():
                one.close()
            self._arrived.clear()

    def _accept(self) -> None:
        while self._is_open:
            try:
                accepted, _ = self._listening.accept()
            except OSError:
                return
            if not self._places.acquire(blocking=False):
                accepted.close()
                continue
            threading.Thread(target=self._greet, args=(accepted,), daemon=True).start()

    def _greet(self, accepted: socket.socket) -> None:
        try:
            purpose = welcome(accepted, self._key)
        finally:
            self._places.release()
        if purpose is None:
            return
        with self._changed:
            if not self._is_open or purpose in self._arrived:
                accepted.close()
                return
            self._arrived[purpose] = accepted
            self._changed.notify_all()
