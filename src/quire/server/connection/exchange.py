"""`Exchange`: one request and its reply, between a connection and the ASGI application; and the
`Pipeline` of those of a connection."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from starlette.types import ASGIApp, Message

from quire.log import get_logger
from quire.server.connection.request_parser import Headers, RequestHead
from quire.server.connection.sender import ReplyWriter, Sender
from quire.server.connection.shared_state import ConnectionSlot
from quire.server.http.problems import HttpError, Problem, all_in_use
from quire.units import KiB

logger = get_logger(__name__)

_MIN_PART_BYTES = 16 * KiB
"""Least bytes of an incomplete body that `receive` returns."""
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Connection(Protocol):
    """The interface of `HttpConnection` for an exchange."""

    @property
    def default_headers(self) -> Headers:
        """Headers of every reply."""

    @property
    def can_stay_open(self) -> bool:
        """Whether the connection may stay open after this reply."""

    @property
    def sender(self) -> Sender:
        """Sends the reply."""

    def body_taken(self) -> None:
        """The application has taken the received part of the body."""

    def reply_ended(self) -> None:
        """The reply is complete."""

    def close(self) -> None:
        """Closes the connection after all bytes are sent."""


class Exchange:
    """Buffers the request's body, calls the application, and sends its reply.

    The pipeline calls `add_body` and `end_request`, or `fail` and `disconnect`. The application
    calls `receive` and `send`.
    """

    __slots__ = (
        "_body", "_changed", "_connection", "_has_given_end", "_is_continue_due",
        "_problem", "head", "is_disconnected", "is_replied", "is_request_complete", "is_started",
        "writer",
    )  # fmt: skip

    def __init__(self, head: RequestHead) -> None:
        self.head = head
        self.is_request_complete = False
        """Whether its whole body has arrived."""
        self.is_started = False
        """Whether the application was called, or will be soon."""
        self.is_replied = False
        """Whether the reply is complete."""
        self._body = bytearray()
        self._changed: asyncio.Event | None = None
        """Made by the first `receive` that waits."""
        self._has_given_end = False
        self._is_continue_due = head.expects_continue
        self.is_disconnected = False
        """Whether the client has disconnected or gets no reply."""
        self._problem: Problem | None = None
        self.writer = ReplyWriter(head.method, head.version)
        self._connection: Connection

    # The request, as it arrives

    @property
    def num_waiting_bytes(self) -> int:
        """Bytes of the body that the application has not taken yet."""
        return len(self._body)

    def add_body(self, data: bytes) -> None:
        """A part of the body."""
        self._body += data
        if self._has_part():
            self._wake()

    def end_request(self) -> None:
        """The body is complete."""
        self.is_request_complete = True
        self._wake()

    def fail(self, problem: Problem) -> None:
        """The body will not be complete: `receive` raises HttpError from now on."""
        if self.writer.is_begun:
            self._connection.close()  # it is too late for an error reply
        self._problem = problem
        self._wake()

    def disconnect(self) -> None:
        """The client has disconnected, or gets no reply."""
        self.is_disconnected = True
        self._wake()

    def _wake(self) -> None:
        if self._changed is not None:
            self._changed.set()

    # The application's side (ASGI)

    def start(self, connection: Connection) -> None:
        """The caller calls `run` next, or soon."""
        self.is_started = True
        self._connection = connection

    async def run(self, app: ASGIApp, scope: dict[str, Any]) -> None:
        """Calls the application; replies with an error if it does not reply."""
        try:
            await app(scope, self.receive, self.send)
            if not self.is_replied and not self.is_disconnected:
                logger.error("%s %s was not answered to its end", self.head.method, scope["path"])
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException:  # of a user's middleware: SystemExit would end the server
            logger.exception("%s %s failed", self.head.method, scope["path"])
        finally:
            if not self.is_replied:
                self._end_unanswered()

    def _end_unanswered(self) -> None:
        if not self.writer.is_begun and not self.is_disconnected:
            problem = Problem(500, "The server failed to answer.")
            self._connection.sender.write(
                self.writer.problem(problem, self._connection.default_headers)
            )
        self._connection.close()

    async def receive(self) -> Message:
        """The next part of the body; after the last one, waits for the disconnect.

        Raises HttpError if the body is invalid or late.
        """
        if self._is_continue_due:
            self._is_continue_due = False
            if not self._body and not self.is_request_complete and not self.writer.is_begun:
                self._connection.sender.write(_CONTINUE)
        while not self.is_disconnected and not self.is_replied:
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
            self._connection.body_taken()
        return {"type": "http.request", "body": data, "more_body": not is_end}

    async def send(self, message: Message) -> None:
        """Sends the head of the reply or a part of its body; nothing after a disconnect."""
        writer, connection, sender = self.writer, self._connection, self._connection.sender
        if sender.is_full:
            await sender.drain()
        if self.is_disconnected:
            return
        if not writer.is_begun:
            _expect(message, "http.response.start")
            headers = [*connection.default_headers, *message.get("headers", ())]
            keeps_alive = (
                self.is_request_complete and self.head.keeps_alive and connection.can_stay_open
            )
            sender.write(writer.head(message["status"], headers, keeps_alive))
        elif not self.is_replied:
            _expect(message, "http.response.body")
            is_last = not message.get("more_body", False)
            sender.write(writer.body(message.get("body", b""), is_last))
            if is_last:
                self.is_replied = True
                self._wake()
                connection.reply_ended()
        else:
            raise RuntimeError("the application went on after the end of its reply")


def _expect(message: Message, kind: str) -> None:
    if message["type"] != kind:
        raise RuntimeError(f"the application sent {message['type']} where {kind} was due")


_MAX_WAITING_BODY_BYTES = 64 * KiB
"""Most bytes of a body that are parsed and not taken by the application."""


class Pipeline:
    """A queue of exchanges. The application answers the first; the parser adds to the last.

    A client may send requests before earlier ones are answered. They are answered in order, and
    invalid bytes after all of them (`refusal`).
    """

    __slots__ = ("_exchanges", "_slot", "refusal")

    def __init__(self, slot: ConnectionSlot) -> None:
        """`slot`: of the connection. A reserved one is for health and readiness alone; other
        requests are refused."""
        self._slot = slot
        self._exchanges: list[Exchange] = []
        self.refusal: Problem | None = None
        """The last reply, to bytes that are not a valid request."""

    @property
    def first(self) -> Exchange | None:
        """The exchange that is answered now."""
        return self._exchanges[0] if self._exchanges else None

    @property
    def has_more(self) -> bool:
        """Whether another reply follows the first one's."""
        return len(self._exchanges) > 1 or self.refusal is not None

    @property
    def is_in_body(self) -> bool:
        """Whether the last request is incomplete."""
        return bool(self._exchanges) and not self._exchanges[-1].is_request_complete

    @property
    def wants_bytes(self) -> bool:
        """Whether bytes may be parsed: not while a complete request waits for its reply."""
        if not self._exchanges:
            return True
        last = self._exchanges[-1]
        return not last.is_request_complete and last.num_waiting_bytes < _MAX_WAITING_BODY_BYTES

    # What the parser calls

    def begin_request(self, head: RequestHead) -> None:
        """The head of a request is complete."""
        if self._slot.is_reserved and not head.is_probe:
            raise HttpError(all_in_use())
        self._exchanges.append(Exchange(head))

    def add_body(self, data: bytes) -> None:
        """A part of its body."""
        self._exchanges[-1].add_body(data)

    def end_request(self) -> None:
        """The request is complete."""
        self._exchanges[-1].end_request()

    # What the connection calls

    def pop(self) -> Exchange:
        """Removes the first exchange, which is answered."""
        return self._exchanges.pop(0)

    def reject_rest(self, problem: Problem) -> None:
        """The rest of the client's bytes is invalid or late. Complete requests stay valid."""
        if not self.is_in_body:
            # After a request with `Connection: close` the client expects no further reply.
            if not self._exchanges or self._exchanges[-1].head.keeps_alive:
                self.refusal = problem
        elif self._exchanges[-1].is_started:
            self._exchanges[-1].fail(problem)
        else:
            self._exchanges.pop()
            self.refusal = problem

    def disconnect(self) -> None:
        """The client has disconnected, or gets no further replies."""
        for exchange in self._exchanges:
            exchange.disconnect()
        self._exchanges.clear()
