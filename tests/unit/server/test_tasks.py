"""No request leaves a task behind on the event loop, however its client behaves."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from asgi_client import AsgiClient

from .conftest import Harness, MakeHarness

LONG = {"prompt": "A", "max_tokens": 200, "stream_options": {"include_usage": True}}


async def drop(app: Any, seconds: float, stream: bool) -> None:
    """Leaves after a while."""
    client = AsgiClient(app)
    asyncio.get_running_loop().call_later(seconds, client.is_gone.set)
    body = {**LONG, "stream": True} if stream else {"prompt": "A", "max_tokens": 200}
    await client.post("/v1/completions", body)


async def read_nothing(app: Any, seconds: float) -> None:
    """Takes the first bytes and then none, until its connection is dropped."""
    client = AsgiClient(app)
    asyncio.get_running_loop().call_later(seconds, client.is_gone.set)

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.body":
            await client.is_gone.wait()

    await client.post("/v1/completions", {**LONG, "stream": True}, send)


async def until_only(tasks: set[asyncio.Task[Any]]) -> None:
    """Returns when no other task is left; fails if some stay."""
    for _ in range(3000):
        left = asyncio.all_tasks() - tasks
        if not left:
            return
        await asyncio.sleep(0.02)
    pytest.fail(f"{len(left)} tasks are left: {left}")


async def test_droppers_leave_no_task(harness: Harness) -> None:
    choose = random.Random(3)

    before = asyncio.all_tasks()
    clients = [drop(harness.app, choose.random() * 0.2, i % 2 == 0) for i in range(500)]
    await asyncio.gather(*clients)
    await until_only(before)
    assert harness.context.num_generating == 0
    assert not harness.context.tasks


async def test_slow_readers_leave_no_task(make_harness: MakeHarness) -> None:
    harness = make_harness(scheduler={"max_num_seqs": 256})

    before = asyncio.all_tasks()
    await asyncio.gather(*[read_nothing(harness.app, 0.3) for _ in range(200)])
    await until_only(before)
    assert harness.context.num_generating == 0
