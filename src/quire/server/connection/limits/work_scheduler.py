"""Divides the time of the event loop among connections that parse much or close together."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

TIME_SLICE_S = 0.0005
"""How long one connection parses before others may."""
_ROUND_S = 0.002
"""How long all connections work before the event loop runs other callbacks."""


class WorkScheduler:
    """Calls back waiting connections, first come, first served.

    Clients that send many small pieces take much time to parse, and thousands that disconnect
    together take much time to close. However many there are, new connections and replies wait at
    most `_ROUND_S`.
    """

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_scheduled = False

    def add(self, work: Callable[[], None]) -> None:
        """Calls `work` once, soon."""
        self._waiting.append(work)
        self._schedule()

    def _schedule(self) -> None:
        if self._waiting and not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._is_scheduled = False
        end = time.perf_counter() + _ROUND_S
        try:
            for _ in range(len(self._waiting)):
                self._waiting.popleft()()
                if time.perf_counter() > end:
                    break
        finally:
            self._schedule()
