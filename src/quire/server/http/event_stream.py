"""Server-sent events: a reply that grows, with a bounded buffer and an eye on the reader.

A client that leaves ends the work at once; one that stops reading is cut off after a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

from starlette.types import Receive, Scope, Send

from quire.log import get_logger
from quire.server.http.problems import Problem, problem_of
from quire.server.http.protocol import ABORT_KEY

logger = get_logger(__name__)

DONE = b"data: [DONE]\n\n"
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


def event(payload: bytes) -> bytes:
    """One event with this JSON document."""
    return b"data: " + payload + b"\n\n"


def error_event(problem: Problem) -> bytes:
    """An error, where the status line is long gone."""
    return event(problem.body())


class EventStream:
    """An ASGI response that sends `parts`, each some whole events, as they come.

    `close` frees what `parts` draws from; it runs however the response ends. What a slow reader
    leaves unread stays in the transport's buffer (64 KiB) and in the one merged output of the
    engine's stream: nothing else is kept for it.
    """

    def __init__(
        self,
        parts: AsyncIterator[bytes],
        close: Callable[[], None],
        slow_reader_timeout_s: float,
        *,
        ends_with_done: bool = True,
    ) -> None:
        self._parts = parts
        self._close = close
        self._slow_reader_timeout_s = slow_reader_timeout_s
        self._last = DONE if ends_with_done else b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watcher = asyncio.get_running_loop().create_task(self._close_when_gone(receive))
        patience = _Patience(self._slow_reader_timeout_s, scope.get("state", {}).get(ABORT_KEY))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            async for data in self._guarded_parts():
                patience.begin()
                await send({"type": "http.response.body", "body": data, "more_body": True})
                patience.end()
            patience.begin()
            await send({"type": "http.response.body", "body": self._last, "more_body": False})
        finally:
            patience.close()
            self._close()
            watcher.cancel()
            with suppress(asyncio.CancelledError):
                await watcher

    async def _guarded_parts(self) -> AsyncIterator[bytes]:
        """The parts; an error among them becomes the last one."""
        try:
            async for data in self._parts:
                yield data
        except Exception as error:
            yield error_event(problem_of(error))

    async def _close_when_gone(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._close()


class _Patience:
    """Cuts off a reader for whom one write has waited too long.

    One timer serves all writes of a stream, since there is one for every token: when it is due it
    looks at the write under way, and is set again to the end of that one's time.
    """

    def __init__(self, timeout_s: float, abort: Callable[[], None] | None) -> None:
        """`abort` drops the connection; None where the server cannot."""
        self._loop = asyncio.get_running_loop()
        self._timeout_s = timeout_s
        self._abort = abort
        self._began: float | None = None
        """When the write under way did, on the event loop's clock."""
        self._timer = None if abort is None else self._loop.call_later(timeout_s, self._look)

    def begin(self) -> None:
        """A write begins."""
        self._began = self._loop.time()

    def end(self) -> None:
        """It was taken over."""
        self._began = None

    def close(self) -> None:
        """There are no more writes."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        now = self._loop.time()
        due = (now if self._began is None else self._began) + self._timeout_s
        if due > now:
            self._timer = self._loop.call_at(due, self._look)
        elif self._abort is not None:
            logger.warning(
                "a client has read nothing for slow_reader_timeout %g s: cut off", self._timeout_s
            )
            self._abort()
