"""`AsgiClient`: a client that leaves when a test says so."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any


async def _drop(_: Any) -> None:
    await asyncio.sleep(0)


class AsgiClient:
    """One POST straight to the application, as the protocol makes it."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._has_sent = False
        self.is_gone = asyncio.Event()

    async def post(
        self, path: str, body: dict[str, Any], send: Callable[[Any], Awaitable[None]] = _drop
    ) -> None:
        """Returns when the application is done with it. `send` takes the reply."""
        data = json.dumps(body).encode()
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST",
            "scheme": "http", "path": path, "raw_path": path.encode(), "root_path": "",
            "query_string": b"", "client": None, "server": None,
            "headers": [(b"content-type", b"application/json"), (b"host", b"quire")],
            "state": {},
        }  # fmt: skip

        async def receive() -> dict[str, Any]:
            if not self._has_sent:
                self._has_sent = True
                return {"type": "http.request", "body": data}
            await self.is_gone.wait()
            return {"type": "http.disconnect"}

        await self._app(scope, receive, send)
