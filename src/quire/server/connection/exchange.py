"""One request and its reply, between a connection and the application."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol

from starlette.types import ASGIApp, Message

from quire.log import get_logger
from quire.server.connection.limits.outlet import Outlet
from quire.server.connection.reply_writer import ReplyWriter
from quire.server.connection.request import Headers, RequestHead
from quire.server.http.problems import HttpError, Problem
from quire.units import KiB

logger = get_logger(__name__)

_MIN_PART_BYTES = 16 * KiB
"""Of a body that is incomplete: less than that is not given to the application."""
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class ReplyLine(Protocol):
    """What an exchange needs of its connection."""

    @property
    def default_headers(self) -> Headers:
        """Headers of every reply."""

    @property
    def wants_more_requests(self) -> bool:
        """Whether the connection can stay open after this reply."""

    @property
    def outlet(self) -> Outlet:
        """Where the reply goes."""

    def body_taken(self) -> None:
        """The application has taken the body that had arrived."""

    def reply_ended(self) -> None:
        """The reply is complete."""

    def close(self) -> None:
        """Ends the connection once all is sent."""


class Exchange:
    """Gathers the request's body, calls the application, and sends what it replies.

    The connection tells of the request: `add_body`, `end_request`, or `fail` and `lose`. The
    application reads it with `receive` and replies with `send`.
    """

    __slots__ = (
        "_body", "_changed", "_has_given_end", "_is_continue_due", "_is_lost", "_line", "_problem",
        "head", "is_replied", "is_request_complete", "is_started", "writer",
    )  # fmt: skip

    def __init__(self, head: RequestHead) -> None:
        self.head = head
        self.is_request_complete = False
        """Whether its body has arrived to the end."""
        self.is_started = False
        """Whether the application is being called."""
        self.is_replied = False
        """Whether the reply is complete."""
        self._body = bytearray()
        self._changed: asyncio.Event | None = None
        """Made by the first `receive` that has to wait."""
        self._has_given_end = False
        self._is_continue_due = head.expects_continue
        self._is_lost = False
        self._problem: Problem | None = None
        self.writer = ReplyWriter(head.method, head.version)
        self._line: ReplyLine

    # The request, as it arrives

    @property
    def num_waiting_bytes(self) -> int:
        """Bytes of the body that the application has not taken."""
        return len(self._body)

    def add_body(self, data: bytes) -> None:
        """Some of the body."""
        self._body += data
        if self._has_part():
            self._wake()

    def end_request(self) -> None:
        """The body is complete."""
        self.is_request_complete = True
        self._wake()

    def fail(self, problem: Problem) -> None:
        """The body will never be complete: `receive` raises HttpError from now on."""
        if self.writer.is_begun:
            self._line.close()  # it is too late to say so
        self._problem = problem
        self._wake()

    def lose(self) -> None:
        """The client is gone."""
        self._is_lost = True
        self._wake()

    def _wake(self) -> None:
        if self._changed is not None:
            self._changed.set()

    # The application's side (ASGI)

    def start(
        self, line: ReplyLine, app: ASGIApp, scope: dict[str, Any]
    ) -> Coroutine[Any, Any, None]:
        """Has the application answer this request; the caller runs what is returned."""
        self.is_started = True
        self._line = line
        return self._run(app, scope)

    async def _run(self, app: ASGIApp, scope: dict[str, Any]) -> None:
        """Calls the application, and makes up for what it leaves undone."""
        try:
            await app(scope, self.receive, self.send)
            if not self.is_replied and not self._is_lost:
                logger.error("%s %s was not answered to its end", self.head.method, scope["path"])
        except Exception:
            logger.exception("%s %s failed", self.head.method, scope["path"])
        finally:
            if not self.is_replied:
                self._give_up()

    def _give_up(self) -> None:
        if not self.writer.is_begun and not self._is_lost:
            problem = Problem(500, "The server failed to answer.")
            self._line.outlet.write(self.writer.problem(problem, self._line.default_headers))
        self._line.close()

    async def receive(self) -> Message:
        """The next part of the body; after the last one, waits until the client is gone.

        Raises HttpError if the body does not arrive as it should.
        """
        if self._is_continue_due:
            self._is_continue_due = False
            if not self._body and not self.is_request_complete and not self.writer.is_begun:
                self._line.outlet.write(_CONTINUE)
        while not self._is_lost and not self.is_replied:
            if self._problem is not None:
                raise HttpError(self._problem)
            if self._has_part():
                return self._take_body()
            if self._changed is None:
                self._changed = asyncio.Event()
            self._changed.clear()
            await self._changed.wait()
        return {"type": "http.disconnect"}

    def _has_part(self) -> bool:
        if self.is_request_complete:
            return not self._has_given_end
        return len(self._body) >= _MIN_PART_BYTES

    def _take_body(self) -> Message:
        data, self._body = bytes(self._body), bytearray()
        is_end = self._has_given_end = self.is_request_complete
        if not is_end:
            self._line.body_taken()
        return {"type": "http.request", "body": data, "more_body": not is_end}

    async def send(self, message: Message) -> None:
        """Sends the head of the reply, or a part of its body; nothing once the client is gone."""
        writer, line, outlet = self.writer, self._line, self._line.outlet
        if outlet.is_full:
            await outlet.drain()
        if self._is_lost:
            return
        if not writer.is_begun:
            _expect(message, "http.response.start")
            headers = [*line.default_headers, *message.get("headers", ())]
            keeps_alive = (
                self.is_request_complete and self.head.keeps_alive and line.wants_more_requests
            )
            outlet.write(writer.head(message["status"], headers, keeps_alive))
        elif not self.is_replied:
            _expect(message, "http.response.body")
            is_last = not message.get("more_body", False)
            outlet.write(writer.body(message.get("body", b""), is_last))
            if is_last:
                self.is_replied = True
                self._wake()
                line.reply_ended()
        else:
            raise RuntimeError("the application went on after the end of its reply")


def _expect(message: Message, kind: str) -> None:
    if message["type"] != kind:
        raise RuntimeError(f"the application sent {message['type']} where {kind} was due")
