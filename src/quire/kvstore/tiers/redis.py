"""`RedisTier`: chunks as values of a Redis or Valkey server, which several machines can share.

The server limits its memory (`maxmemory` with the policy `allkeys-lru`) and does the eviction. A
call always ends within its timeout, even if a value arrives a few bytes at a time.
"""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from quire.errors import ConfigError
from quire.kvstore.chunks import ChunkKey
from quire.kvstore.tiers.base import Buffer, Tier, TierError, TierUsage

if TYPE_CHECKING:
    from redis.connection import Connection, ConnectionPool

_FORM = "redis://[[user]:password@]host[:port][/database]"
_VALKEY = re.compile("^valkey", re.IGNORECASE)
_END = b"\r\n"
_LONGEST_LINE = 4096
_FIRST_BYTES = 64
"""Size of the first read of a reply, when the length of the value is not known yet."""


class RedisTier(Tier):
    """Values with the keys `quire:kv:<folder>:<name>`. Not a local tier: the server may be
    remote."""

    name = "redis"
    is_local = False

    def __init__(
        self,
        url: str,
        ttl_s: float | None = None,
        *,
        timeout_s: float = 10.0,
        connect_timeout_s: float = 2.0,
    ) -> None:
        """`url`: `redis://`, `rediss://` (TLS) or `unix://`, with the options of redis-py. `ttl_s`:
        the server drops values that were not used for this time. `timeout_s`: limit for a whole
        call.

        Does not connect. Raises ConfigError if `url` is wrong or redis-py is not installed.
        """
        try:
            from redis.exceptions import RedisError
        except ImportError:
            raise ConfigError(
                "a redis:// tier needs redis-py: `pip install 'quire-engine[redis]'`"
            ) from None
        self._redis_error: type[Exception] = RedisError
        self._ttl_ms = None if ttl_s is None else max(1, int(ttl_s * 1000))
        self._timeout_s = timeout_s
        self._is_closed = False
        self._pool = _pool_of(url, timeout_s, connect_timeout_s)
        self._place = _place_of(url, self._pool.connection_kwargs)

    def contains(self, keys: Sequence[ChunkKey]) -> list[bool]:
        # TOUCH and PEXPIRE return 1 if the key exists and count as a use; EXISTS does not.
        commands: list[tuple[Any, ...]] = [
            ("TOUCH", _name(key)) if self._ttl_ms is None else ("PEXPIRE", _name(key), self._ttl_ms)
            for key in reversed(keys)
        ]
        return [reply == 1 for reply in reversed(self._ask(commands))]

    def read(self, key: ChunkKey, max_bytes: int) -> Buffer | None:
        return self.read_into(key, max_bytes, memoryview(bytearray(max_bytes)))

    def read_into(self, key: ChunkKey, max_bytes: int, into: memoryview) -> Buffer | None:
        # Request one byte more than allowed to detect longer values. A missing key gives 0 bytes.
        command = ("GETRANGE", _name(key), 0, max_bytes)
        num_bytes: int = self._ask([command], partial(_receive_value, into=into[:max_bytes]))
        if num_bytes > max_bytes:
            self.delete(key)
            return None
        return into[:num_bytes] if num_bytes else None

    def write(self, key: ChunkKey, parts: Sequence[Buffer]) -> None:
        expiry = () if self._ttl_ms is None else ("PX", self._ttl_ms)
        value = memoryview(parts[0] if len(parts) == 1 else b"".join(parts)).cast("B")
        self._ask([("SET", _name(key), value, "NX", *expiry)])

    def delete(self, key: ChunkKey) -> None:
        self._ask([("UNLINK", _name(key))])

    def usage(self) -> TierUsage:
        return TierUsage(num_chunks=0, num_bytes=0, max_bytes=None)

    def close(self) -> None:
        self._is_closed = True
        self._pool.disconnect()

    def _ask(
        self, commands: list[tuple[Any, ...]], receive: Callable[[Connection], Any] | None = None
    ) -> Any:
        """Send commands and return their replies in order, or the result of `receive`.

        A connection on which anything fails is closed, so that its late replies are never read as
        the answer to another call.
        """
        if self._is_closed:
            raise TierError(f"{self._place}: closed")
        if not commands:
            return []
        connection: Connection | None = None
        limit = _TimeLimit(self._timeout_s)
        try:
            with limit:
                connection = self._pool.get_connection()
                limit.watch(connection)
                connection.send_packed_command(connection.pack_commands(commands))
                if receive is not None:
                    return receive(connection)
                return [connection.read_response() for _ in commands]
        except Exception as error:  # redis-py's parser raises any of them for wrong bytes
            if connection is not None:
                connection.disconnect()
            raise TierError(f"{self._place}: {self._why(error, limit)}") from error
        finally:
            if connection is not None:
                self._pool.release(connection)

    def _why(self, error: Exception, limit: _TimeLimit) -> str:
        if limit.is_over:
            return f"no reply within {self._timeout_s:g} s"
        if self._is_closed:
            return "closed"
        if isinstance(error, (self._redis_error, OSError)):
            return str(error) or type(error).__name__
        return f"the reply cannot be parsed: {error!r}"


class _TimeLimit:
    """Closes a connection when its time is over. A socket timeout is not enough: it starts again
    with each byte."""

    def __init__(self, seconds: float) -> None:
        self.is_over = False
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        with self._lock:
            self._connection = None

    def watch(self, connection: Connection) -> None:
        """Set the connection to close. Raises TimeoutError if connecting took all the time."""
        with self._lock:
            if self.is_over:
                raise TimeoutError
            self._connection = connection

    def _end(self) -> None:
        with self._lock:
            self.is_over = True
            if self._connection is not None:
                self._connection.disconnect()


def _pool_of(url: str, timeout_s: float, connect_timeout_s: float) -> ConnectionPool:
    """Create the connection pool. Options in the URL override the ones here. valkey:// equals
    redis://."""
    from redis.backoff import NoBackoff
    from redis.connection import ConnectionPool
    from redis.retry import Retry

    try:
        pool = ConnectionPool.from_url(
            _VALKEY.sub("redis", url),
            socket_timeout=timeout_s,
            socket_connect_timeout=connect_timeout_s,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
            decode_responses=False,
        )
        pool.make_connection()  # does not connect, but raises for unknown options
    except (ValueError, TypeError):  # their messages may contain the password
        raise ConfigError(f"the URL of a Redis tier must have the form {_FORM}") from None
    return pool


def _place_of(url: str, options: dict[str, Any]) -> str:
    """Return the server's address for messages, without user and password."""
    scheme = url.split(":", 1)[0]
    if "path" in options:
        return f"unix://{options['path']}"
    return f"{scheme}://{options.get('host', 'localhost')}:{options.get('port', 6379)}"


def _name(key: ChunkKey) -> str:
    return f"quire:kv:{key.folder}:{key.name}"


def _receive_value(connection: Connection, into: memoryview) -> int:
    """Read the reply to a command that returns one value (RESP: `$<length>`, the bytes, end of
    line) straight into memory. redis-py would copy the value three times, and a chunk has
    megabytes.

    Returns the length of the value. If it is longer than `into`, the value is not read and the
    connection is closed. Raises OSError, or ValueError for any other reply.
    """
    stream: socket.socket = connection._sock
    line, rest = _line(stream)
    if not line.startswith(b"$"):
        raise ValueError(line.decode("utf-8", "replace"))
    num_bytes = int(line[1:])
    if num_bytes < 0:
        raise ValueError("the server returned a null value")
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
        raise ValueError("the value is longer than its announced length")
    return num_bytes


def _line(stream: socket.socket) -> tuple[bytes, bytes]:
    """Read at least the first line; return it and the bytes received after it."""
    data = b""
    while _END not in data:
        if len(data) > _LONGEST_LINE:
            raise ValueError(f"a line of the reply is longer than {_LONGEST_LINE} bytes")
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
