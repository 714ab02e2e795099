"""Answers clients that get no connection with an error, and closes them.

The acceptor hands over sockets without TLS: of clients that have begun a request while all
connections are in use (503), or that have sent nothing for too long (408). Such a client costs
a file descriptor and no connection object. Closing a socket with unread bytes resets it, and the
client may lose the reply; so the rest of its request is read and dropped until the client closes.
"""

from __future__ import annotations

import asyncio
import select
import socket

from quire.server.connection.sender import ReplyWriter
from quire.server.connection.shared_state import SharedState
from quire.server.http.problems import Problem

_AT_ONCE = 64
"""Clients that are read from in one turn of the event loop."""
_CHECK_S = 0.25
"""Seconds between two searches for late clients."""


class Refusals:
    """Owned by the event loop. `close_oldest` bounds the number of open sockets."""

    def __init__(self, shared: SharedState) -> None:
        self._shared = shared
        self._loop = asyncio.get_running_loop()
        self.open: dict[int, tuple[socket.socket, float]] = {}
        """Refused clients by file descriptor, and when to close each; the oldest one is first."""
        self._readable = select.epoll()
        self._loop.add_reader(self._readable.fileno(), self._read)
        self._timer: asyncio.TimerHandle | None = None

    def add(self, client: socket.socket, problem: Problem) -> None:
        """Sends an error to a client, and closes the socket later."""
        try:
            # A new socket has room for all of the reply.
            client.send(
                ReplyWriter("GET", "1.1").problem(
                    problem, self._shared.server_state.default_headers
                ),
                socket.MSG_DONTWAIT,
            )
            client.shutdown(socket.SHUT_WR)
            self._readable.register(client.fileno(), select.EPOLLIN)
        except OSError:  # the client has disconnected
            client.close()
            return
        due = self._loop.time() + self._shared.args.linger_timeout
        self.open[client.fileno()] = client, due
        if self._timer is None:
            self._timer = self._loop.call_later(_CHECK_S, self._close_late)

    def close_oldest(self) -> bool:
        """Closes the client that was refused first; False if there is none."""
        oldest = next(iter(self.open), None)
        if oldest is not None:
            self._close(oldest)
        return oldest is not None

    def close(self) -> None:
        """Closes all."""
        while self.close_oldest():
            pass
        self._loop.remove_reader(self._readable.fileno())
        self._readable.close()
        if self._timer is not None:
            self._timer.cancel()

    def _read(self) -> None:
        """Drops bytes of clients, and closes those that have read their reply and closed."""
        for descriptor, _event in self._readable.poll(0, _AT_ONCE):
            client, _due = self.open[descriptor]
            try:
                is_open = bool(client.recv_into(self._shared.read_buffer, 0, socket.MSG_DONTWAIT))
            except OSError as error:
                is_open = isinstance(error, BlockingIOError)
            if not is_open:
                self._close(descriptor)

    def _close_late(self) -> None:
        now = self._loop.time()
        for descriptor, (_client, due) in list(self.open.items()):
            if due > now:
                break
            self._close(descriptor)
        self._timer = None
        if self.open:
            self._timer = self._loop.call_later(_CHECK_S, self._close_late)

    def _close(self, descriptor: int) -> None:
        client, _due = self.open.pop(descriptor)
        self._readable.unregister(descriptor)
        client.close()
