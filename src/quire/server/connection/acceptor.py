"""Where new connections come in: a seat for each, and the TLS handshake."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from functools import partial
from typing import Any

from quire.log import get_logger
from quire.server.connection.connection import HttpConnection
from quire.server.connection.front import Front
from quire.server.connection.limits.seats import Seat

logger = get_logger(__name__)

_BATCH = 64
"""Connections accepted before those that are open have their turn. (uvloop accepts one.)"""
_RETRY_S = 0.1


class Acceptor:
    """Accepts the connections of one listening socket, and hands them to `HttpConnection`s.

    A connection counts from its first moment: TLS handshakes that never end are bounded in number
    and time like everything else.
    """

    def __init__(self, front: Front, listener: socket.socket, tls_options: dict[str, Any]) -> None:
        self._front = front
        self._listener = listener
        self._tls_options = tls_options
        self._loop = asyncio.get_running_loop()
        self._connecting: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        self._listen()

    def close(self) -> None:
        """Accepts no more."""
        self._loop.remove_reader(self._listener)
        if self._retry is not None:
            self._retry.cancel()
        for task in self._connecting:
            task.cancel()

    async def wait_closed(self) -> None:
        """Returns when `close` has done its work."""
        if self._connecting:
            await asyncio.wait(self._connecting)

    def _listen(self) -> None:
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        try:
            for _ in range(_BATCH):
                client, _address = self._listener.accept()
                self._admit(client)
        except (BlockingIOError, ConnectionAbortedError):
            pass  # nobody else waits, or one has gone
        except OSError as error:
            logger.error("connections cannot be accepted: %s", error)
            self._loop.remove_reader(self._listener)
            self._retry = self._loop.call_later(_RETRY_S, self._listen)

    def _admit(self, client: socket.socket) -> None:
        client.setblocking(False)
        seat = self._front.seats.take()
        if seat is None:
            client.close()
            return
        seat.evict = partial(_end, client)
        task = self._loop.create_task(self._connect(client, seat))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, client: socket.socket, seat: Seat) -> None:
        """Makes a connection of a socket, after the TLS handshake if there is one."""
        make_connection = partial(HttpConnection, self._front, seat)
        is_open = False
        try:
            if client.family != socket.AF_UNIX:
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if seat.is_reserved:
                await self._wait_for_bytes(client)
                seat.work()
            await self._loop.connect_accepted_socket(make_connection, client, **self._tls_options)
            is_open = True
        except (OSError, asyncio.TimeoutError) as error:  # ssl.SSLError is an OSError
            logger.debug("a connection was lost before it was open: %s", error)
        finally:
            if not is_open:
                seat.leave()
                client.close()

    async def _wait_for_bytes(self, client: socket.socket) -> None:
        """In a rush only those who ask for something get a connection that takes memory."""
        arrived = self._loop.create_future()
        self._loop.add_reader(client, _set, arrived)
        try:
            await asyncio.wait_for(arrived, self._front.args.header_timeout)
        finally:
            self._loop.remove_reader(client)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _end(client: socket.socket) -> bool:
    with suppress(OSError):  # it has ended by itself
        client.shutdown(socket.SHUT_RDWR)
    return True
