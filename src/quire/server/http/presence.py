"""Whether a client is still there while the server works for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

T = TypeVar("T")


async def while_present(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`. If the client disconnects first, cancels it and raises
    ClientDisconnect.

    Call it after the request's body was read: the next message is the disconnect.
    """
    loop = asyncio.get_running_loop()
    working = loop.create_task(work)
    try:
        async with departure(request.receive) as watching:
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
    async with departure(request.receive, close) as watching:
        result = await work
        return None if watching.done() else result


@asynccontextmanager
async def departure(
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
