"""`Door`: accepts the connections of an engine's other machines, each for a purpose.

TLS begins here, except between two ranks, whose connections are passed on to their processes.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress

from quire.errors import ConfigError, QuireError, RankError
from quire.executor.nodes.handshake import welcome
from quire.executor.nodes.tls import secured, tls_context

_BACKLOG = 64
_MOST_GREETINGS = 64
"""Most connections that are being accepted at once. One more ends the oldest, which is likely to be
a stranger's, because a machine's handshake takes milliseconds."""
_RETRY_S = 0.1
WATCH_S = 0.1
"""Seconds between two looks at the machines, while something is waited for."""
BETWEEN_RANKS = b"ranks "
"""First bytes of the purpose of a connection between two ranks."""
Arrival = socket.socket | QuireError
"""A connection, or why TLS could not begin there."""


class Door:
    """A listening socket, with a thread that accepts connections that know the key."""

    def __init__(
        self, host: str, port: int, key: bytes, watch: Callable[[], None] = lambda: None
    ) -> None:
        """`port` 0: any. `watch`: called regularly by who waits for something of the machines;
        what it raises ends the wait. Raises ConfigError, also for certificates that cannot be
        read."""
        tls_context(accepts=True)
        self.watch = watch
        self._key = key
        self._arrived: dict[bytes, Arrival] = {}
        self._changed = threading.Condition()
        self._greeted: deque[socket.socket] = deque()
        """Those that are being accepted."""
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
        RankError, and what `watch` raises."""
        return self.take_any([purpose], until)[1]

    def take_any(self, purposes: Collection[bytes], until: float) -> tuple[bytes, socket.socket]:
        """The first connection with one of these purposes, and its purpose; as `take`."""
        while (found := self._arrival(purposes)) is None:
            if time.monotonic() > until:
                missing = b", ".join(purposes).decode()
                raise RankError(f"{missing} has not connected to port {self.port}")
            self.watch()
        purpose, arrived = found
        if isinstance(arrived, QuireError):
            raise arrived
        return purpose, arrived

    def close(self) -> None:
        """Accepts nothing more. Idempotent."""
        self._is_open = False
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        with self._changed:
            for one in self._arrived.values():
                _drop(one)
            self._arrived.clear()

    def _arrival(self, purposes: Collection[bytes]) -> tuple[bytes, Arrival] | None:
        """Return a connection that has arrived for one of these purposes; wait for it for a
        moment."""
        with self._changed:
            self._changed.wait_for(lambda: not self._arrived.keys().isdisjoint(purposes), WATCH_S)
            found = next((one for one in self._arrived if one in purposes), None)
            return None if found is None else (found, self._arrived.pop(found))

    def _accept(self) -> None:
        while self._is_open:
            try:
                accepted, _ = self._listening.accept()
            except OSError:  # closed, or the process has too many files at this moment
                time.sleep(_RETRY_S)
                continue
            with self._changed:
                self._greeted.append(accepted)
                if len(self._greeted) > _MOST_GREETINGS:
                    with suppress(OSError):
                        self._greeted.popleft().shutdown(socket.SHUT_RDWR)
            threading.Thread(target=self._greet, args=(accepted,), daemon=True).start()

    def _greet(self, accepted: socket.socket) -> None:
        try:
            purpose = welcome(accepted, self._key)
        finally:
            with self._changed, suppress(ValueError):
                self._greeted.remove(accepted)
        if purpose is not None:
            self._arrive(purpose, accepted)

    def _arrive(self, purpose: bytes, accepted: socket.socket) -> None:
        """A connection that knows the key. On a thread of its own."""
        arrived: Arrival = accepted
        if not purpose.startswith(BETWEEN_RANKS):
            try:
                arrived = secured(accepted, accepts=True)
            except QuireError as error:
                arrived = error
        with self._changed:
            if not self._is_open or purpose in self._arrived:
                _drop(arrived)
                return
            self._arrived[purpose] = arrived
            self._changed.notify_all()


def _drop(arrived: Arrival) -> None:
    if isinstance(arrived, socket.socket):
        arrived.close()
