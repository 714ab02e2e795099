"""Ends work when its client disconnects: the handling of a large request, or a generation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.types import Scope, Send

from quire.server.http.problems import Problem, for_route

T = TypeVar("T")


async def while_present(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`. If the client disconnects first, cancels it and raises
    ClientDisconnect.

    Call it after the request's body was read: the next message is the disconnect.
    """
    loop = asyncio.get_running_loop()
    working = loop.create_task(work)
    try:
        async with _watching(request) as watching:
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
    async with _watching(request) as watching:
        watching.add_done_callback(lambda _: close())
        try:
            result = await work
            return None if watching.done() else result
        finally:
            close()


@asynccontextmanager
async def _watching(request: Request) -> AsyncIterator[asyncio.Task[None]]:
    """A task that ends when the client disconnects."""
    task = asyncio.get_running_loop().create_task(_disconnected(request))
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await task


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def send_problem(scope: Scope, send: Send, problem: Problem) -> None:
    """Answers with an error body, in the form of the request's route."""
    problem = for_route(scope, problem)
    headers = [(name.lower().encode(), value.encode()) for name, value in problem.headers.items()]
    await send_bytes(send, problem.status, problem.body(), headers)


async def send_bytes(
    send: Send,
    status: int,
    body: bytes,
    headers: list[tuple[bytes, bytes]] | None = None,
    content_type: bytes = b"application/json",
) -> None:
    """Answers with a whole body."""
    fields = [
        (b"content-type", content_type),
        (b"content-length", str(len(body)).encode()),
        *(headers or []),
    ]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})
