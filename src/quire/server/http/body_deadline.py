"""The deadline of a body under the HTTP server of another program."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quire.server.http.problems import HttpError, body_too_late

_LATE_S = 0.2
"""A timer that is so late shows that the process stood still."""
_AFTERWARDS_S = 2.0
"""Time that the rest of a body then has left."""


class BodyDeadline:
    """Answers 408 to a body that takes too long. Quire's own HTTP server has this limit for each
    connection; an application under another server, such as Ray Serve's, needs this class."""

    def __init__(self, app: ASGIApp, seconds: float) -> None:
        self._app = app
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        loop = asyncio.get_running_loop()
        left_s, is_whole = self._seconds, False
        # Time that the application spends elsewhere, or in which the process stands still, does not
        # count.

        async def timely_receive() -> Message:
            nonlocal left_s, is_whole
            if is_whole:
                return await receive()
            begin, received = loop.time(), asyncio.ensure_future(receive())
            try:
                await asyncio.wait([received], timeout=left_s)
                late_s = loop.time() - begin - left_s
                if late_s > _LATE_S:
                    left_s += late_s + _AFTERWARDS_S
                    await asyncio.wait([received], timeout=_AFTERWARDS_S)
                if not received.done():
                    raise HttpError(body_too_late(self._seconds))
                message = received.result()
            finally:
                received.cancel()
            left_s -= loop.time() - begin
            is_whole = not message.get("more_body", False)
            return message

        await self._app(scope, timely_receive, send)
