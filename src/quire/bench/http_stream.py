"""A lean HTTP/1.1 client for streamed answers: asyncio streams, keep-alive, server-sent events.

The load generator measures on the same cores as the server, so it must cost little: no
client library, one JSON decode per event. Knows HTTP, and nothing of models or statistics.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from quire.errors import ConfigError, QuireError
from quire.units import MiB

_MAX_HEADER_BYTES = 64 * 1024
_MAX_CHUNK_BYTES = 64 * MiB
_READ_TIMEOUT_S = 600.0
_BROKEN = (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.TimeoutError)


class ReplyError(QuireError):
    """The server is unreachable, closed the connection early, or sent invalid HTTP."""


@dataclass(slots=True)
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def close(self) -> None:
        """Close the connection; errors of the other side are ignored."""
        self.writer.close()
        with contextlib.suppress(*_BROKEN):
            await self.writer.wait_closed()


@dataclass(slots=True)
class Response:
    """Status and headers have arrived; the body is read with `Client.events` or `Client.body`."""

    status: int
    headers: dict[str, str]
    connection: _Connection


@dataclass(slots=True)
class Client:
    """Connections to one server, reused. Owned by one event loop."""

    base_url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    is_verified: bool = True
    """Whether TLS certificates are checked."""
    _idle: list[_Connection] = field(default_factory=list)

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.base_url)
            is_known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:  # a wrong port, or half an address
            is_known = False
        if not is_known:
            raise ConfigError(f"{self.base_url!r} must be a URL like http://127.0.0.1:8000")

    async def send(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> Response:
        """Send a request; return when the headers of the response have arrived."""
        while True:
            is_reused = bool(self._idle)
            connection = self._idle.pop() if is_reused else await self._open()
            try:
                return await self._exchange(connection, method, path, body, headers or {})
            except (ReplyError, *_BROKEN) as error:
                await connection.close()
                if isinstance(error, ReplyError):
                    raise
                # An idle connection may have been closed meanwhile; a fresh one may not.
                if not is_reused:
                    raise ReplyError(f"{self.base_url}: {error or 'connection closed'}") from None

    async def events(self, response: Response) -> AsyncGenerator[bytes, None]:
        """Yield the data of each server-sent event as it arrives; comments are skipped."""
        rest = b""
        async for chunk in self._chunks(response):
            lines = (rest + chunk).split(b"\n")
            rest = lines.pop()
            for line in lines:
                if line.startswith(b"data:"):
                    yield line[5:].strip()

    async def body(self, response: Response) -> bytes:
        """Return the whole body."""
        return b"".join([chunk async for chunk in self._chunks(response)])

    async def close(self) -> None:
        """Close idle connections."""
        while self._idle:
            await self._idle.pop().close()

    async def _open(self) -> _Connection:
        parts = urlsplit(self.base_url)
        context: ssl.SSLContext | None = None
        if parts.scheme == "https":
            context = ssl.create_default_context()
            if not self.is_verified:
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        port = parts.port or (443 if context else 80)
        try:
            reader, writer = await asyncio.open_connection(
                parts.hostname, port, ssl=context, limit=_MAX_HEADER_BYTES
            )
        except OSError as error:
            raise ReplyError(f"{self.base_url}: {error}") from None
        return _Connection(reader, writer)

    async def _exchange(
        self,
        connection: _Connection,
        method: str,
        path: str,
        body: bytes,
        headers: Mapping[str, str],
    ) -> Response:
        parts = urlsplit(self.base_url)
        lines = [f"{method} {parts.path.rstrip('/')}{path} HTTP/1.1", f"Host: {parts.netloc}"]
        merged = {"Content-Type": "application/json", **self.headers, **headers}
        lines += [f"{name}: {value}" for name, value in merged.items()]
        lines += [f"Content-Length: {len(body)}", "", ""]
        connection.writer.write("\r\n".join(lines).encode("latin-1") + body)
        await connection.writer.drain()
        head = await asyncio.wait_for(connection.reader.readuntil(b"\r\n\r\n"), _READ_TIMEOUT_S)
        first, *rest = head.decode("latin-1").split("\r\n")
        words = first.split(" ", 2)
        if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
            raise ReplyError(f"{self.base_url} does not speak HTTP: {first[:80]!r}")
        pairs = (line.partition(":") for line in rest if line)
        found = {name.strip().lower(): value.strip() for name, _, value in pairs}
        return Response(int(words[1]), found, connection)

    async def _chunks(self, response: Response) -> AsyncIterator[bytes]:
        """The body piece by piece; gives the connection back only when all of it was read."""
        reader, headers = response.connection.reader, response.headers
        is_whole = False
        try:
            if headers.get("transfer-encoding", "").lower() == "chunked":
                async for chunk in _chunked(reader):
                    yield chunk
                is_whole = True
            elif "content-length" in headers:
                yield await reader.readexactly(_length(headers["content-length"], 10))
                is_whole = True
            else:
                while chunk := await reader.read(65536):
                    yield chunk
        except _BROKEN as error:
            raise ReplyError(f"the connection broke: {error or 'closed'}") from None
        finally:
            if is_whole and headers.get("connection", "").lower() != "close":
                self._idle.append(response.connection)
            else:
                await response.connection.close()


async def _chunked(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while True:
        line = await reader.readuntil(b"\r\n")
        size = _length(line.split(b";")[0].strip().decode("latin-1"), 16)
        if size == 0:
            await reader.readuntil(b"\r\n")
            return
        chunk = await reader.readexactly(size + 2)
        yield chunk[:-2]


def _length(text: str, base: int) -> int:
    try:
        size = int(text, base)
    except ValueError:
        raise ReplyError(f"the server sent {text[:40]!r} where a length belongs") from None
    if not 0 <= size <= _MAX_CHUNK_BYTES:
        raise ReplyError(f"the server sent a piece of {size} bytes")
    return size
