"""Work for a client who may leave: its value, its errors, and what is left of them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from starlette.requests import ClientDisconnect, Request

from quire.errors import RequestError
from quire.server.http.presence import while_present


class Body:
    """Stands for all that a request has brought."""


def request_with(receive: Callable[[], Awaitable[Any]]) -> Request:
    return Request({"type": "http", "headers": []}, receive)


async def stays() -> Any:
    await asyncio.sleep(60)


async def leaves() -> Any:
    return {"type": "http.disconnect"}


async def test_the_value_of_work() -> None:
    async def work() -> int:
        await asyncio.sleep(0)
        return 7

    assert (await while_present(request_with(stays), work())) == 7


async def test_work_ends_with_its_client() -> None:
    was_cancelled = False

    async def work() -> None:
        nonlocal was_cancelled
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            was_cancelled = True
            raise

    with pytest.raises(ClientDisconnect):
        await while_present(request_with(leaves), work())
    assert was_cancelled


def test_a_refused_request_is_freed_without_the_garbage_collector() -> None:
    async def main() -> weakref.ref[Body]:
        request = request_with(stays)
        request.state.body = body = Body()

        async def work() -> None:
            await asyncio.sleep(0)
            raise RequestError("refused")

        with contextlib.suppress(RequestError):
            await while_present(request, work())
        return weakref.ref(body)

    gc.collect()
    gc.disable()
    try:
        assert asyncio.run(main())() is None
    finally:
        gc.enable()
