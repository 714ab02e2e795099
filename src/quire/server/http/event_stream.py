"""Streams of events with a bounded buffer, and work that ends when its client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from quire.server.http.problems import Problem, problem_of

DONE = b"data: [DONE]\n\n"
_HEADERS = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]


@dataclass(frozen=True, slots=True)
class StreamForm:
    """The bytes that a stream sends besides its parts."""

    end: bytes
    """Sent after the last part."""
    keep_alive: bytes
    """Sent while no part is ready."""
    error: Callable[[Problem], bytes]
    """Sent instead of the end, because the status line was sent already."""
    media: str = "text/event-stream; charset=utf-8"


def event(payload: bytes) -> bytes:
    """One event with this JSON document."""
    return b"data: " + payload + b"\n\n"


OPENAI_FORM = StreamForm(
    end=DONE,
    keep_alive=b": keep-alive\n\n",
    error=lambda problem: event(problem.body()),
)
"""Readers of events skip the comment that keeps the connection alive."""
PLAIN_FORM = replace(OPENAI_FORM, end=b"")


class EventStream:
    """An ASGI response that sends `parts`, each one or more whole events, as they come.

    `close`, if given, frees the source of `parts`; it always runs at the end. Unread data of a slow
    reader is limited to the transport's buffer (64 KiB) and one merged output of the engine's
    stream.
    """

    def __init__(
        self,
        parts: AsyncIterator[bytes],
        close: Callable[[], None] | None,
        *,
        form: StreamForm = OPENAI_FORM,
        keep_alive_s: float = 0,
    ) -> None:
        """`keep_alive_s`: seconds without a part after which the form's `keep_alive` is sent; 0:
        never."""
        self._parts = parts
        self._close = close
        self._form = form
        self._keep_alive_s = keep_alive_s

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", self._form.media.encode()), *_HEADERS]
        async with _watching(receive, self._close):
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            async for data in self._guarded_parts():
                await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body", "body": self._form.end, "more_body": False})

    async def _guarded_parts(self) -> AsyncIterator[bytes]:
        """The parts; an exception becomes the last one."""
        parts = self._parts if not self._keep_alive_s else self._parts_and_comments()
        try:
            async for data in parts:
                yield data
        except Exception as error:
            yield self._form.error(problem_of(error))

    async def _parts_and_comments(self) -> AsyncIterator[bytes]:
        """The parts, and the form's `keep_alive` whenever none came for a while."""
        parts = aiter(self._parts)
        pending = asyncio.ensure_future(anext(parts))
        try:
            while True:
                done, _ = await asyncio.wait({pending}, timeout=self._keep_alive_s)
                if not done:
                    yield self._form.keep_alive
                    continue
                try:
                    yield pending.result()
                except StopAsyncIteration:
                    return
                pending = asyncio.ensure_future(anext(parts))
        finally:
            pending.cancel()


T = TypeVar("T")


async def while_present(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`. If the client disconnects first, cancels it and raises
    ClientDisconnect.

    Call it after the request's body was read: the next message is the disconnect.
    """
    loop = asyncio.get_running_loop()
    working = loop.create_task(work)
    try:
        async with _watching(request.receive) as watching:
            await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise ClientDisconnect
            return working.result()
    finally:
        working.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await working
        # An exception refers to this frame, and a failed task to its exception. A reference from
        # the frame to the task would keep the request's memory until a garbage collection.
        del working


async def until_gone(
    request: Request, close: Callable[[], None], work: Coroutine[Any, Any, T]
) -> T | None:
    """The result of `work`, which ends once `close` is called: at the latest when the client
    disconnects. Returns None in that case."""
    async with _watching(request.receive, close) as watching:
        result = await work
        return None if watching.done() else result


@asynccontextmanager
async def _watching(
    receive: Receive, close: Callable[[], None] | None = None
) -> AsyncIterator[asyncio.Task[None]]:
    """A task that ends when the client disconnects, or sends more than it may. `close` is called
    then, and at the end."""
    task = asyncio.get_running_loop().create_task(_disconnected(receive))
    if close is not None:
        task.add_done_callback(lambda _: close())
    try:
        yield task
    finally:
        if close is not None:
            close()
        task.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await task


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
