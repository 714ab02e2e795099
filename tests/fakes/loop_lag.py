"""`LoopLag`: how long an event loop was kept from turning, measured from inside it."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType


@dataclass(frozen=True, slots=True)
class Gap:
    """One time in which the loop did not turn."""

    at: float
    """When it ended, in seconds since the epoch."""
    seconds: float
    cpu_s: float
    """Processor time of the whole process meanwhile. Much less than `seconds`: the machine was
    busy with others, and the process is not to blame."""


@dataclass(slots=True)
class LoopLag:
    """An async context that watches the running loop with a task of its own.

    async with LoopLag() as lag:
        ...
    assert lag.longest_s < 0.05
    """

    interval_s: float = 0.005
    gaps: list[Gap] = field(default_factory=list)
    """All that were longer than `noticed_s`."""
    noticed_s: float = 0.01
    longest_s: float = 0.0
    _task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> LoopLag:
        self._task = asyncio.get_running_loop().create_task(self._watch())
        await asyncio.sleep(0)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._task is not None:
            await asyncio.sleep(self.interval_s)  # sees a gap that has not ended yet
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _watch(self) -> None:
        now, cpu = time.monotonic(), time.process_time()
        while True:
            await asyncio.sleep(self.interval_s)
            before, now = now, time.monotonic()
            cpu_before, cpu = cpu, time.process_time()
            late_s = now - before - self.interval_s
            self.longest_s = max(self.longest_s, late_s)
            if late_s > self.noticed_s:
                self.gaps.append(Gap(time.time(), late_s, cpu - cpu_before))
