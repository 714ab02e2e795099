"""Bounds on request bodies: their size, and the time they may take to arrive."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quire.server.http.problems import HttpError, Problem
from quire.server.http.responses import send_problem


class BodyMiddleware:
    """Counts the bytes of a body while it arrives, whatever its headers claim.

    Answers 413 to one that is too large and 408 to one that takes too long; nothing beyond the
    limit is ever held.
    """

    def __init__(self, app: ASGIApp, max_body_bytes: int, body_timeout_s: float) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes
        self._body_timeout_s = body_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if self._claimed_length(scope) > self._max_body_bytes:
            await send_problem(send, self._too_large())
            return
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._body_timeout_s
        num_bytes, is_complete = 0, False

        async def bounded_receive() -> Message:
            nonlocal num_bytes, is_complete
            if is_complete:
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), max(0.0, deadline - loop.time()))
            except asyncio.TimeoutError:
                raise HttpError(self._too_slow()) from None
            num_bytes += len(message.get("body", b""))
            if num_bytes > self._max_body_bytes:
                raise HttpError(self._too_large())
            is_complete = not message.get("more_body", False)
            return message

        await self._app(scope, bounded_receive, send)

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

    def _too_slow(self) -> Problem:
        return Problem(
            408,
            f"The request body took longer than body_timeout {self._body_timeout_s:g} s to arrive.",
            headers={"Connection": "close"},
        )
