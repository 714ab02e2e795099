"""Streams of events with a bounded buffer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace

from starlette.types import Receive, Scope, Send

from quire.server.http.presence import departure
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
    end=DONE, keep_alive=b": keep-alive\n\n", error=lambda problem: event(problem.body())
)
"""Readers of events skip the comment that keeps the connection alive."""
PLAIN_FORM = replace(OPENAI_FORM, end=b"")


class EventStream:
    """An ASGI response that sends `parts`, each one or more whole events, as they come.

    The status line goes with the first part. A request that fails before has the status of its
    error, so that a client or a proxy can send it again.
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
        start = {"type": "http.response.start", "status": 200, "headers": headers}
        has_begun = False
        async with departure(receive, self._close):
            async for data in self._guarded_parts():
                if not has_begun:
                    has_begun = True
                    await send(start)
                await send({"type": "http.response.body", "body": data, "more_body": True})
            if not has_begun:
                await send(start)
            await send({"type": "http.response.body", "body": self._form.end, "more_body": False})

    async def _guarded_parts(self) -> AsyncIterator[bytes]:
        """The parts; an exception after the first becomes the last one."""
        parts = self._parts if not self._keep_alive_s else self._parts_and_comments()
        has_begun = False
        try:
            async for data in parts:
                has_begun = True
                yield data
        except Exception as error:
            if not has_begun:
                raise
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
