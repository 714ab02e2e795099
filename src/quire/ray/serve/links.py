"""Connections between front ends and engines, which are on any machines of a Ray cluster.

Both ends prove that they know the key that the engine's process has drawn at its start. The key
goes to front ends in a call of Ray. QUIRE_RANK_CERT and the two others encrypt what follows.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import msgspec

from quire.errors import EngineDeadError
from quire.executor.nodes.door import Door
from quire.executor.nodes.handshake import connect
from quire.executor.nodes.tls import tls_context

_LENGTH = struct.Struct("<I")
_MOST_BYTES = 1 << 30
_BUFFER = 1 << 20
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Entrance(msgspec.Struct, array_like=True):
    """The address of an engine for front ends, and its key."""

    address: str
    port: int
    key: bytes
    host: str
    """`this_host` of the engine."""
    pid: int
    """The process there."""


entrance_decoder: msgspec.msgpack.Decoder[Entrance] = msgspec.msgpack.Decoder(Entrance)


class Link:
    """Messages in both directions."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self) -> bytes:
        """The next message. Raises EngineDeadError or OSError at the end of the connection."""
        try:
            [length] = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            if length > _MOST_BYTES:
                raise EngineDeadError(f"a message of {length} bytes is longer than {_MOST_BYTES}")
            return await self._reader.readexactly(length)
        except EOFError:
            raise EngineDeadError("the connection was closed") from None

    async def write(self, message: bytes) -> None:
        """Sends a message; waits while the other end is slower. Raises OSError."""
        self._writer.write(_LENGTH.pack(len(message)) + message)
        await self._writer.drain()

    def close(self) -> None:
        """Closes the connection at once. Idempotent."""
        self._writer.transport.abort()


async def opened(entrance: Entrance, purpose: str) -> Link:
    """A connection to an engine. Raises OSError or RankError."""
    address = (entrance.address, entrance.port)
    found = await asyncio.to_thread(connect, address, entrance.key, purpose.encode())
    return await link_over(found, accepts=False)


async def link_over(connected: socket.socket, *, accepts: bool) -> Link:
    """Messages over a socket, with TLS if certificates are set. `accepts`: exactly one of the two
    ends says so. Raises OSError or ConfigError."""
    loop, context = asyncio.get_running_loop(), tls_context(accepts)
    reader = asyncio.StreamReader(_BUFFER)
    protocol = asyncio.StreamReaderProtocol(reader)
    transport: asyncio.Transport
    if accepts:
        transport, _ = await loop.connect_accepted_socket(lambda: protocol, connected, ssl=context)
    else:
        name = None if context is None else ""
        transport, _ = await loop.create_connection(
            lambda: protocol, sock=connected, ssl=context, server_hostname=name
        )
    return Link(reader, asyncio.StreamWriter(transport, protocol, reader, loop))


def this_host() -> str:
    """The same for two processes if they can see each other's ids, and no network is between them:
    names of machines may be equal, and containers of one machine can lose each other."""
    names = ("/proc/self/ns/pid", "/proc/self/ns/net")
    try:
        return " ".join([_BOOT_ID.read_text().strip(), *map(os.readlink, names)])
    except OSError:  # not Linux, or a sandbox
        return socket.gethostname()


class EngineDoor(Door):
    """Takes connections of front ends."""

    def __init__(self, address: str, begin: Callable[[str, socket.socket], None]) -> None:
        """`begin` gets the purpose of each connection and its socket, on the running event loop."""
        self._begin = begin
        self._loop = asyncio.get_running_loop()
        key = secrets.token_bytes(32)
        super().__init__(address, 0, key)
        self.entrance = Entrance(self.host, self.port, key, this_host(), os.getpid())

    def _arrive(self, purpose: bytes, accepted: socket.socket) -> None:
        try:
            self._loop.call_soon_threadsafe(self._begin, purpose.decode(), accepted)
        except RuntimeError:  # the loop is closed
            accepted.close()
