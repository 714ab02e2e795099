"""Cancels work when its client disconnects.

Used for the handlers of large requests, which can take seconds before generation begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

T = TypeVar("T")


async def while_present(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`. If the client disconnects first, cancels it and raises
    ClientDisconnect.

    Call it after the request's body was read: the next message is the disconnect.
    """
    loop = asyncio.get_running_loop()
    working, watching = loop.create_task(work), loop.create_task(_until_gone(request))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        for task in (working, watching):
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task
        # An exception refers to this frame, and a failed task to its exception. A reference from
        # the frame to the task would keep the request's memory until a garbage collection.
        del working, watching, task


async def _until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
