"""The value of a key of a Redis server, read from a connection straight into memory.

redis-py copies a value three times on its way, under the interpreter's lock. A chunk has megabytes.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from redis.connection import Connection

_END = b"\r\n"
_LONGEST_LINE = 4096
_FIRST_BYTES = 64
"""Of one call, until it is known how long the value is."""


def receive_value(connection: Connection, into: memoryview) -> int:
    """Reads the reply to a command that gives one value (RESP: `$<length>`, the bytes and an end of
    line), of which nothing was read before.

    Returns the length of the value. One that is longer than `into` is not read, and the connection
    is closed. Raises OSError, or ValueError if the reply is something else.
    """
    stream: socket.socket = connection._sock
    line, rest = _line(stream)
    if not line.startswith(b"$"):
        raise ValueError(line.decode("utf-8", "replace"))
    num_bytes = int(line[1:])
    if num_bytes < 0:
        raise ValueError("a value was asked for, and no bytes came")
    if num_bytes > len(into):
        connection.disconnect()
        return num_bytes
    end = min(len(rest), num_bytes)
    into[:end] = rest[:end]
    while end < num_bytes:
        end += _some(stream.recv_into(into[end:num_bytes]))
    after = rest[num_bytes:]
    while len(after) < len(_END):
        after += _bytes(stream, len(_END) - len(after))
    if after != _END:
        raise ValueError("a value is longer than the server said")
    return num_bytes


def _line(stream: socket.socket) -> tuple[bytes, bytes]:
    """The first line of what comes, and what came with it."""
    data = b""
    while _END not in data:
        if len(data) > _LONGEST_LINE:
            raise ValueError("a line has no end")
        data += _bytes(stream, _FIRST_BYTES)
    line, _, rest = data.partition(_END)
    return line, rest


def _bytes(stream: socket.socket, most: int) -> bytes:
    data = stream.recv(most)
    _some(len(data))
    return data


def _some(count: int) -> int:
    if not count:
        raise ConnectionError("the server closed the connection")
    return count
