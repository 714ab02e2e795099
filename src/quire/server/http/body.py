"""Limits the size of request bodies. (`connection` limits the time.)"""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quire.server.http.problems import HttpError, Problem, unavailable
from quire.server.http.responses import send_problem


class BodyMiddleware:
    """Counts the bytes of a body while it arrives, independent of its headers.

    Answers 413 to a body that is too large, and 503 if all bodies that are arriving are too large
    together. Never keeps more bytes than these limits.
    """

    def __init__(self, app: ASGIApp, max_body_bytes: int, max_pending_body_bytes: int) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes
        self._max_pending_bytes = max_pending_body_bytes
        self._num_pending_bytes = 0
        """Bytes of all bodies that are not complete."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if self._claimed_length(scope) > self._max_body_bytes:
            await send_problem(scope, send, self._too_large())
            return
        num_bytes = num_pending = 0

        async def bounded_receive() -> Message:
            nonlocal num_bytes, num_pending
            message = await receive()
            size = len(message.get("body", b""))
            num_bytes += size
            if num_bytes > self._max_body_bytes:
                raise HttpError(self._too_large())
            if message.get("more_body", False):
                num_pending += size
                self._num_pending_bytes += size
                if self._num_pending_bytes > self._max_pending_bytes:
                    raise HttpError(unavailable("Too much is being sent to this server.", 1))
            else:
                self._num_pending_bytes -= num_pending
                num_pending = 0
            return message

        try:
            await self._app(scope, bounded_receive, send)
        finally:
            self._num_pending_bytes -= num_pending

    def _claimed_length(self, scope: Scope) -> int:
        for name, value in scope["headers"]:
            if name == b"content-length" and value.isdigit():
                return int(value[:20])
        return 0

    def _too_large(self) -> Problem:
        return Problem(
            413,
            f"The request body is larger than max_body_bytes {self._max_body_bytes}.",
            headers={"Connection": "close"},
        )
