"""`serve_http` and `with_cancellation`: helpers of vLLM for a web application with an engine."""

from __future__ import annotations

import asyncio
import functools
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from quire.errors import ConfigError

Handler = Callable[..., Awaitable[Any]]


async def serve_http(
    app: Any, sock: socket.socket | None = None, enable_ssl_refresh: bool = False, **options: Any
) -> Awaitable[None]:
    """Serves an ASGI application until a signal. `options` are uvicorn's. Returns an awaitable, as
    vLLM does, which completes at once. Raises ConfigError."""
    if enable_ssl_refresh:
        raise ConfigError("enable_ssl_refresh=True is not supported; leave it at False")
    import uvicorn

    server = uvicorn.Server(uvicorn.Config(app, **options))
    await server.serve(sockets=[sock] if sock else None)
    return asyncio.sleep(0)


def with_cancellation(handler: Handler) -> Handler:
    """Return a request handler that is cancelled when its client disconnects.

    The request is the handler's second argument or `raw_request`. Its body must have been read.
    """

    @functools.wraps(handler)
    async def cancellable(*args: Any, **kwargs: Any) -> Any:
        request = args[1] if len(args) > 1 else kwargs["raw_request"]
        work = asyncio.ensure_future(handler(*args, **kwargs))
        disconnect = asyncio.create_task(_until_disconnected(request))
        try:
            await asyncio.wait([work, disconnect], return_when=asyncio.FIRST_COMPLETED)
            return work.result() if work.done() else None
        finally:
            work.cancel()
            disconnect.cancel()

    return cancellable


async def _until_disconnected(request: Any) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
