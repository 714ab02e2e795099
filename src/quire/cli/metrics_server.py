"""A metrics page for a command without a server (`quire run-batch --enable-metrics`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from quire.errors import ConfigError

_HEAD_S = 10.0
"""Seconds within which a request must arrive."""


async def serve_metrics(text: Callable[[], bytes], host: str, port: int) -> asyncio.Server:
    """Serve the current metrics for every GET request. Raises ConfigError if the address is in use.

    Runs on the event loop, the only thread that changes what `text` reads.
    """

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _HEAD_S)
            is_get = head.startswith(b"GET ")
            body = text() if is_get else b""
            status = b"200 OK" if is_get else b"405 Method Not Allowed"
            writer.write(
                b"HTTP/1.1 %s\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
                b"Content-Length: %d\r\nConnection: close\r\n\r\n" % (status, len(body)) + body
            )
            await writer.drain()
        writer.close()

    try:
        return await asyncio.start_server(answer, host, port)
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"metrics cannot be served at {host}:{port}: {error}; give another --port"
        ) from None
