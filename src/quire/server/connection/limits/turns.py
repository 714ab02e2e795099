"""How connections with much to parse share the event loop."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

TURN_S = 0.0005
"""How long one connection is parsed for before others have their turn."""
_ROUND_S = 0.002
"""How long all of them take before the event loop goes on with everything else."""


class Turns:
    """Gives turns to those who ask, one after the other, for a short while at a time.

    What clients send in small pieces costs time. However many do so, new connections and replies
    wait no longer than a round.
    """

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_due = False

    def ask(self, take_turn: Callable[[], None]) -> None:
        """Calls `take_turn` once, soon."""
        self._waiting.append(take_turn)
        self._schedule()

    def _schedule(self) -> None:
        if self._waiting and not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._is_due = False
        end = time.perf_counter() + _ROUND_S
        try:
            for _ in range(len(self._waiting)):
                self._waiting.popleft()()
                if time.perf_counter() > end:
                    break
        finally:
            self._schedule()
