"""Connections to servers of tools, with bounds on what a server may send.

The package `mcp` has transports too; that of programs keeps a line of any length in memory and
copies it for each piece that arrives.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import httpx2
import mcp_types
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage

from quire.config.tool_servers import ServerEntry

MAX_MESSAGE = 16 * 1024 * 1024
"""Most bytes of one message of a program, and of one answer of a web server."""
_GRACE_S = 1.0
"""Time for a program to end after its input was closed, and again after SIGTERM."""


@asynccontextmanager
async def program_streams(
    entry: ServerEntry, last_words: deque[str], on_end: Callable[[str], object]
) -> AsyncIterator[Any]:
    """Starts the program of a server and yields the streams of its messages. `last_words` gets the
    end of what it writes to standard error; `on_end`, why no more messages come."""
    process = await asyncio.create_subprocess_exec(
        entry.command,
        *entry.args,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=entry.environment(),
        cwd=entry.cwd,
        limit=MAX_MESSAGE,
        start_new_session=True,
    )
    to_session, read_stream = anyio.create_memory_object_stream[Any](0)
    write_stream, from_session = anyio.create_memory_object_stream[Any](0)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_read_messages, process, to_session, on_end)
            tasks.start_soon(_write_messages, process, from_session)
            tasks.start_soon(_read_words, process, last_words)
            try:
                yield read_stream, write_stream
            finally:
                tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await _end(process)
        for stream in (to_session, read_stream, write_stream, from_session):
            stream.close()


async def _read_messages(
    process: asyncio.subprocess.Process, to_session: Any, on_end: Callable[[str], object]
) -> None:
    """Passes messages on. Lines that are none are dropped: some programs print a greeting."""
    assert process.stdout is not None
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        async with to_session:
            try:
                while line := await process.stdout.readline():
                    with suppress(ValueError):
                        message = mcp_types.jsonrpc_message_adapter.validate_json(
                            line, by_name=False
                        )
                        await to_session.send(SessionMessage(message))
                with anyio.move_on_after(_GRACE_S):
                    await process.wait()
                await anyio.sleep(0.05)  # its last words may still be read
                on_end("the program has ended")
            except ValueError:
                on_end(f"the program sent a line of more than {MAX_MESSAGE:,} bytes")


async def _write_messages(process: asyncio.subprocess.Process, from_session: Any) -> None:
    assert process.stdin is not None
    with suppress(OSError):
        async for sent in from_session:
            text = sent.message.model_dump_json(by_alias=True, exclude_unset=True)
            process.stdin.write(text.encode() + b"\n")
            await process.stdin.drain()


async def _read_words(process: asyncio.subprocess.Process, last_words: deque[str]) -> None:
    assert process.stderr is not None
    while data := await process.stderr.read(4096):
        last_words.extend(line for line in data.decode(errors="replace").splitlines() if line)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ends a program and what it started: by the end of its input, SIGTERM, and SIGKILL."""
    assert process.stdin is not None
    process.stdin.close()
    for number in (signal.SIGTERM, signal.SIGKILL):
        with anyio.move_on_after(_GRACE_S):
            while process.returncode is None:
                await anyio.sleep(0.01)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
    # A transport that is not closed waits for the ends of pipes that other processes may hold.
    process._transport.close()  # type: ignore[attr-defined]


class _BoundedBody(httpx2.AsyncByteStream):  # type: ignore[misc, unused-ignore]
    """The body of an answer, of at most `MAX_MESSAGE` bytes."""

    def __init__(self, body: Any) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for data in self._body:
            size += len(data)
            if size > MAX_MESSAGE:
                raise httpx2.ReadError(f"the answer has more than {MAX_MESSAGE:,} bytes")
            yield data

    async def aclose(self) -> None:
        await self._body.aclose()


async def _bound(response: httpx2.Response) -> None:
    response.stream = _BoundedBody(response.stream)


@asynccontextmanager
async def web_streams(entry: ServerEntry) -> AsyncIterator[Any]:
    """Connects to the address of a server and yields the streams of its messages."""
    client = httpx2.AsyncClient(
        headers={**entry.headers, "Accept-Encoding": "identity"},
        timeout=httpx2.Timeout(30.0, read=300.0),
        event_hooks={"response": [_bound]},
    )
    async with client, streamable_http_client(entry.url, http_client=client) as streams:
        yield streams
