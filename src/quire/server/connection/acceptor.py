"""Accepts new connections: acquires a slot for each, and does the TLS handshake.

Accepting is quick; a connection of its own, with all that belongs to it, is not. A client costs a
file descriptor until its first bytes arrive: a socket object costs as much as accepting does. Then
it gets a slot, and waits for its turn to become a connection: of a crowd few do so in each turn of
the event loop. Those whose first bytes ask for health or readiness become connections at once.

A client that begins a request while no slot is free gets the reply 503 (`Refusals`). With TLS that
reply needs a handshake, and so a reserved slot; a client waits for it.
"""

from __future__ import annotations

import asyncio
import select
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from quire.log import get_logger
from quire.server.connection.connection import HttpConnection
from quire.server.connection.refusals import Refusals
from quire.server.connection.shared_state import ConnectionSlot, SharedState
from quire.server.connection.socket_transport import SocketTransport
from quire.server.http.auth import PROBE_PATHS
from quire.server.http.listening import most_without_connection
from quire.server.http.problems import all_in_use, headers_too_late

logger = get_logger(__name__)

_SLICE_S = 0.008
"""Processor time for accepting connections before other callbacks run. Less than a crowd needs to
connect would let the kernel's queue grow, and everyone would wait in it."""
_PROBES = tuple(method + path for path in sorted(PROBE_PATHS) for method in (b"GET ", b"HEAD "))
"""First bytes of requests for health and readiness."""
_PEEKED_BYTES = max(map(len, _PROBES))
_PEEK = int(socket.MSG_PEEK | socket.MSG_DONTWAIT)
_ACCEPTED_AT_ONCE = 64
"""Connections accepted before their first bytes are looked at."""
_RETRY_S = 0.1
_CHECK_S = 0.1
"""Seconds between two looks at clients without a slot."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A client that has a slot but no connection yet."""

    slot: ConnectionSlot
    begin: Callable[[], None]
    """Creates the connection, in its turn."""


class Acceptor:
    """Accepts the connections of one listening socket, and makes an `HttpConnection` of each.

    A connection has a slot from the beginning, so that the number of TLS handshakes is limited too.
    """

    def __init__(
        self, shared: SharedState, listener: socket.socket, tls_options: dict[str, Any]
    ) -> None:
        self._shared = shared
        self._listener = listener
        self._kind = listener.family, listener.type, listener.proto
        self._tls_options = tls_options
        self._loop = asyncio.get_running_loop()
        self._silent: dict[int, float] = {}
        """Clients that have sent nothing yet, by file descriptor, and when to close each; the
        oldest one is first."""
        self._due_slot: dict[int, None] = {}
        """Clients that have begun a TLS handshake and have no slot."""
        self._waiting: dict[int, _Waiting] = {}
        """Clients that have a slot."""
        self._refusals = Refusals(shared)
        self._most_without_slot = most_without_connection(shared.args)
        self._arrivals = select.epoll()
        """Reports the clients that have sent bytes, once each."""
        self._loop.add_reader(self._arrivals.fileno(), self._look_at_arrivals)
        self._connecting: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None
        self._check: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        self._listen()

    def close(self) -> None:
        """Stops accepting, closes waiting clients, and cancels handshakes."""
        self._loop.remove_reader(self._listener)
        self._loop.remove_reader(self._arrivals.fileno())
        for descriptor in [*self._silent, *self._due_slot, *self._waiting]:
            self._close(self._socket(descriptor))
        self._arrivals.close()
        self._refusals.close()
        for timer in (self._retry, self._check):
            if timer is not None:
                timer.cancel()
        for task in self._connecting:
            task.cancel()

    async def wait_closed(self) -> None:
        """Waits until the handshakes are cancelled."""
        if self._connecting:
            await asyncio.wait(self._connecting)

    def _listen(self) -> None:
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        end, are_more = time.thread_time() + _SLICE_S, True
        while are_more and time.thread_time() < end:
            clients, are_more = self._accept_some()
            due = self._loop.time() + self._shared.args.header_timeout
            for client in clients:
                self._make_room()
                self._silent[client] = due
                self._arrivals.register(client, select.EPOLLIN | select.EPOLLONESHOT)
            self._look_at_arrivals()
        if self._silent:
            self._check_later()

    def _accept_some(self) -> tuple[list[int], bool]:
        """File descriptors of new clients, and whether more may wait."""
        clients: list[int] = []
        try:
            for _ in range(_ACCEPTED_AT_ONCE):
                # `accept` would make a socket object
                clients.append(self._listener._accept()[0])  # type: ignore[attr-defined]
        except (BlockingIOError, ConnectionAbortedError):
            return clients, False  # no more connections wait, or one was aborted
        except OSError as error:
            logger.error("connections cannot be accepted: %s", error)
            self._loop.remove_reader(self._listener)
            self._retry = self._loop.call_later(_RETRY_S, self._listen)
            return clients, False
        return clients, True

    def _look_at_arrivals(self) -> None:
        """Looks at clients whose first bytes have arrived, or who have gone."""
        for descriptor, _event in self._arrivals.poll(0):
            if descriptor in self._silent or descriptor in self._waiting:
                self._look_at(descriptor)

    def _look_at(self, descriptor: int) -> None:
        client = self._socket(descriptor)
        first = _first_bytes(client)
        if first == b"":
            self._close(client)
        elif self._is_probe(first):
            self._open_early(client)
        else:
            client.detach()  # it keeps waiting
            if first is not None and descriptor not in self._waiting:
                self._serve_or_refuse(descriptor)

    def _open_early(self, client: socket.socket) -> None:
        """Makes a client a connection before its turn, if there is a slot for it."""
        waiting, slots = self._take(client.fileno()), self._shared.slots
        slot = waiting.slot if waiting is not None else slots.acquire() or slots.acquire_reserved()
        if slot is None:
            self._refuse(client)
        else:
            self._open(client, slot)

    def _close(self, client: socket.socket) -> None:
        waiting = self._take(client.fileno())
        client.close()
        if waiting is not None:
            waiting.slot.release()

    def _serve_or_refuse(self, descriptor: int) -> None:
        """A client has begun a request: it gets a slot and waits for its turn, or gets 503."""
        slots = self._shared.slots
        slot = slots.acquire()
        if slot is None and self._tls_options:
            slot = slots.acquire_reserved()
        if slot is not None:
            self._silent.pop(descriptor, None)
            self._due_slot.pop(descriptor, None)
            begin = partial(self._begin, descriptor)
            self._waiting[descriptor] = _Waiting(slot, begin)
            slot.evict = partial(self._drop, descriptor)
            self._shared.connects.add(begin)
        elif self._tls_options:
            self._silent.pop(descriptor, None)
            self._due_slot[descriptor] = None
            self._check_later()
        else:
            self._take(descriptor)
            self._refuse(self._socket(descriptor))

    def _refuse(self, client: socket.socket) -> None:
        self._make_room()
        self._refusals.add(client, all_in_use())

    def _make_room(self) -> None:
        """Bounds the clients without a slot: closes one that was answered, or has sent nothing, or
        has waited longest for a handshake."""
        num_open = len(self._silent) + len(self._due_slot) + len(self._refusals.open)
        if num_open >= self._most_without_slot and not self._refusals.close_oldest():
            self._close(self._socket(next(iter(self._silent or self._due_slot))))

    def _check_later(self) -> None:
        if self._check is None:
            self._check = self._loop.call_later(_CHECK_S, self._check_clients)

    def _check_clients(self) -> None:
        """Serves clients for whom there is a slot now, and ends those that have sent nothing."""
        self._check = None
        for descriptor in list(self._due_slot):
            if descriptor in self._due_slot:
                self._look_at(descriptor)
            if descriptor in self._due_slot:
                break
        now = self._loop.time()
        for descriptor, due in list(self._silent.items()):
            if due > now:
                break
            if self._tls_options:
                self._close(self._socket(descriptor))
            else:
                self._take(descriptor)
                late = headers_too_late(self._shared.args.header_timeout)
                self._refusals.add(self._socket(descriptor), late)
        if self._silent or self._due_slot:
            self._check_later()

    def _take(self, descriptor: int) -> _Waiting | None:
        """Removes a client from the waiting ones. Returns None if it has no slot."""
        self._arrivals.unregister(descriptor)
        self._silent.pop(descriptor, None)
        self._due_slot.pop(descriptor, None)
        waiting = self._waiting.pop(descriptor, None)
        if waiting is not None:
            self._shared.connects.discard(waiting.begin)
        return waiting

    def _socket(self, descriptor: int) -> socket.socket:
        """The socket object of an accepted connection, which owns the file descriptor."""
        return socket.socket(*self._kind, fileno=descriptor)

    def _is_probe(self, first: bytes | None) -> bool:
        """Whether a client's first bytes ask, in plain text, for health or readiness."""
        return first is not None and first.startswith(_PROBES) and not self._tls_options

    def _drop(self, descriptor: int) -> bool:
        """Whether another client may have the slot of one that waits: only if this one has gone."""
        client = self._socket(descriptor)
        is_gone = _first_bytes(client) == b""
        if is_gone:
            self._close(client)
        else:
            client.detach()
        return is_gone

    def _begin(self, descriptor: int) -> None:
        waiting = self._take(descriptor)
        assert waiting is not None
        client, slot = self._socket(descriptor), waiting.slot
        client.setblocking(False)
        slot.evict = partial(self._shut_down, client)
        task = self._loop.create_task(self._connect(client, slot))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    def _open(self, client: socket.socket, slot: ConnectionSlot) -> None:
        """Makes an `HttpConnection` of a socket with bytes in plain text, which are read now."""
        client.setblocking(False)
        try:
            _send_at_once(client)
            slot.set_busy()
            connection = HttpConnection(self._shared, slot)
            SocketTransport(self._loop, client, connection).open()
        except OSError as error:
            logger.debug("a connection was lost before it was open: %s", error)
            slot.release()
            client.close()

    async def _connect(self, client: socket.socket, slot: ConnectionSlot) -> None:
        """Makes an `HttpConnection` of a socket, after the TLS handshake if there is one."""
        make_connection = partial(HttpConnection, self._shared, slot)
        is_open = False
        try:
            _send_at_once(client)
            await self._loop.connect_accepted_socket(make_connection, client, **self._tls_options)
            is_open = True
        except (OSError, asyncio.TimeoutError) as error:  # ssl.SSLError is an OSError
            logger.debug("a connection was lost before it was open: %s", error)
        finally:
            if not is_open:
                slot.release()
                client.close()

    def _shut_down(self, client: socket.socket) -> bool:
        """Another client gets the slot of one that is becoming a connection; False if this one has
        sent bytes that were not read yet."""
        if _first_bytes(client):
            return False
        with suppress(OSError):  # the client has closed it
            client.shutdown(socket.SHUT_RDWR)
        return True


def _first_bytes(client: socket.socket) -> bytes | None:
    """The first bytes, as far as they are there, which stay unread; none: the client has gone.
    None: it has sent nothing yet."""
    try:
        return client.recv(_PEEKED_BYTES, _PEEK)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def _send_at_once(client: socket.socket) -> None:
    if client.family != socket.AF_UNIX:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
