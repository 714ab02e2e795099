"""Waiting for what other threads, tasks and processes bring about."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any


def until(condition: Callable[[], Any], timeout_s: float = 120.0) -> None:
    """Waits on the caller's thread."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.005)


async def soon(condition: Callable[[], Any], timeout_s: float = 120.0) -> None:
    """Waits on the event loop."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "it never came"
        await asyncio.sleep(0.005)
