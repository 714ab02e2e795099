"""`merge_async_iterators`: merges several streams of outputs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def merge_async_iterators(
    *iterators: AsyncGenerator[T, None],
) -> AsyncGenerator[tuple[int, T], None]:
    """Yield the items of all iterators as they arrive, each with its iterator's index.

    If this generator is closed or an iterator raises, all iterators are closed, which aborts their
    requests.
    """
    numbers = {_next(iterator): number for number, iterator in enumerate(iterators)}
    try:
        while numbers:
            done, _ = await asyncio.wait(numbers, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                number = numbers.pop(task)
                with suppress(StopAsyncIteration):
                    item = await task
                    numbers[_next(iterators[number])] = number
                    yield number, item
    finally:
        for task in numbers:
            task.cancel()
        await asyncio.gather(*numbers, return_exceptions=True)
        for iterator in iterators:
            await iterator.aclose()


def _next(iterator: AsyncGenerator[T, None]) -> asyncio.Task[T]:
    async def step() -> T:
        return await iterator.__anext__()

    return asyncio.create_task(step())
