"""Accepts new connections: acquires a slot for each, and does the TLS handshake.

Accepting is quick; a connection of its own, with all that belongs to it, is not. So of a crowd many
are accepted in each turn of the event loop and few become connections. Those whose first bytes ask
for health or readiness become connections at once, and their requests are read at once.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from quire.log import get_logger
from quire.server.connection.connection import HttpConnection
from quire.server.connection.limits.connection_slots import ConnectionSlot
from quire.server.connection.shared_state import SharedState
from quire.server.connection.socket_transport import SocketTransport
from quire.server.http.auth import PROBE_PATHS

logger = get_logger(__name__)

_SLICE_S = 0.008
"""Processor time for accepting connections before other callbacks run. Less than a crowd needs to
connect would let the kernel's queue grow, and everyone would wait in it."""
_PROBES = tuple(method + path for path in sorted(PROBE_PATHS) for method in (b"GET ", b"HEAD "))
"""How requests for health and readiness begin."""
_PEEKED_BYTES = max(map(len, _PROBES))
_PEEK = int(socket.MSG_PEEK | socket.MSG_DONTWAIT)
_RETRY_S = 0.1


class Acceptor:
    """Accepts the connections of one listening socket, and makes an `HttpConnection` of each.

    A connection has a slot from the beginning, so that the number of TLS handshakes is limited too.
    """

    def __init__(
        self, shared: SharedState, listener: socket.socket, tls_options: dict[str, Any]
    ) -> None:
        self._shared = shared
        self._listener = listener
        self._tls_options = tls_options
        self._loop = asyncio.get_running_loop()
        self._connecting: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None
        self._is_closed = False
        listener.setblocking(False)
        self._listen()

    def close(self) -> None:
        """Stops accepting, and cancels handshakes."""
        self._is_closed = True
        self._loop.remove_reader(self._listener)
        if self._retry is not None:
            self._retry.cancel()
        for task in self._connecting:
            task.cancel()

    async def wait_closed(self) -> None:
        """Waits until the handshakes are cancelled."""
        if self._connecting:
            await asyncio.wait(self._connecting)

    def _listen(self) -> None:
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        end = time.thread_time() + _SLICE_S
        try:
            while time.thread_time() < end:
                client, _address = self._listener.accept()
                self._admit(client)
        except (BlockingIOError, ConnectionAbortedError):
            pass  # no more connections wait, or one was aborted
        except OSError as error:
            logger.error("connections cannot be accepted: %s", error)
            self._loop.remove_reader(self._listener)
            self._retry = self._loop.call_later(_RETRY_S, self._listen)

    def _admit(self, client: socket.socket) -> None:
        first = _first_bytes(client)
        slot = None if first == b"" else self._shared.slots.acquire()
        if slot is None:
            client.close()
            return
        if self._is_probe(first):
            self._open(client, slot)
        else:
            begin = partial(self._begin, client, slot)
            slot.evict = partial(self._drop, client, slot, begin)
            self._shared.connects.add(begin)

    def _is_probe(self, first: bytes | None) -> bool:
        """Whether a client's first bytes ask, in plain text, for health or readiness."""
        return first is not None and first.startswith(_PROBES) and not self._tls_options

    def _drop(self, client: socket.socket, slot: ConnectionSlot, begin: Callable[[], None]) -> bool:
        """Another client gets the slot of one that was still waiting to become a connection; False
        if this one has asked for health meanwhile."""
        self._shared.connects.discard(begin)
        if self._is_probe(_first_bytes(client)):
            self._open(client, slot)
            return False
        client.close()
        return True

    def _begin(self, client: socket.socket, slot: ConnectionSlot) -> None:
        if self._is_closed:
            slot.release()
            client.close()
            return
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
            if slot.is_reserved:
                await self._wait_for_bytes(client)
                slot.set_busy()
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
        asked for health meanwhile."""
        if self._is_probe(_first_bytes(client)):
            return False
        with suppress(OSError):  # the client has closed it
            client.shutdown(socket.SHUT_RDWR)
        return True

    async def _wait_for_bytes(self, client: socket.socket) -> None:
        """Waits for the first bytes, so that idle clients in reserved slots use little memory."""
        arrived = self._loop.create_future()
        self._loop.add_reader(client, _set, arrived)
        try:
            await asyncio.wait_for(arrived, self._shared.args.header_timeout)
        finally:
            self._loop.remove_reader(client)


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


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
