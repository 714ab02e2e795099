"""Helpers that scripts import from vLLM: ids, limits, streams, tensors, and clean-up, which Quire
does not need. This module does not import torch."""

from __future__ import annotations

import asyncio
import gc
import resource
import sys
import uuid
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any, TypeVar


def random_uuid() -> str:
    """Return 16 random hexadecimal digits, for a request id."""
    return uuid.uuid4().hex[:16]


class Counter:
    """Counts up by 1 with each `next`."""

    def __init__(self, start: int = 0) -> None:
        self.counter = start

    def __next__(self) -> int:
        self.counter += 1
        return self.counter - 1

    def reset(self) -> None:
        """Restarts at 0."""
        self.counter = 0


def set_ulimit(target_soft_limit: int = 65535) -> None:
    """Raises the limit of open files to `target_soft_limit`, or as far as the hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < target_soft_limit:
        wanted = target_soft_limit if hard == resource.RLIM_INFINITY else hard
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(target_soft_limit, wanted), hard))


def cleanup_dist_env_and_memory(shutdown_ray: bool = False) -> None:
    """Runs the garbage collector. Quire does not have a distributed environment."""
    del shutdown_ray
    gc.collect()


def destroy_model_parallel() -> None:
    """Does nothing: Quire does not have process groups."""


def destroy_distributed_environment() -> None:
    """Does nothing: Quire does not have a distributed environment."""


def async_tensor_h2d(data: Any, device: Any = None, dtype: Any = None, out: Any = None) -> Any:
    """Return the data of a list, array or tensor as a tensor on `device`, or copied to `out`.
    Raises ValueError if neither is given."""
    if device is None and out is None:
        raise ValueError("async_tensor_h2d requires `device` or `out`; pass device='cpu'")
    torch: Any = sys.modules["torch"]
    found = torch.as_tensor(data, dtype=out.dtype if dtype is None and out is not None else dtype)
    return found.to(device=device) if out is None else out.copy_(found)


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
