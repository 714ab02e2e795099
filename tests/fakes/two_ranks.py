"""An executor with two ranks, each of which computes the whole model: their answers must agree."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from quire.config.records import EngineConfig
from quire.errors import BackendError
from quire.executor import Executor, part_of_rank
from quire.executor.runners import make_runner
from quire.protocol import SchedulePlan, StepResult
from quire.worker.worker import Worker


class TwoRankExecutor(Executor):
    """Both workers live in this process and compute one after the other."""

    num_ranks = 2
    max_plans_in_flight = 2

    def __init__(self, config: EngineConfig) -> None:
        self._workers = [Worker(config), Worker(config)]
        self._runners = [make_runner(config, worker.model) for worker in self._workers]
        self._submitted: deque[SchedulePlan] = deque()

    def submit(self, plan: SchedulePlan) -> None:
        self._submitted.append(plan)

    def collect(self) -> StepResult:
        plan = self._submitted.popleft()
        outcomes: list[StepResult | BackendError] = []
        for runner, worker in zip(self._runners, self._workers, strict=True):
            try:
                begun = runner.begin(plan)
                outcomes.append(runner.finish(begun, worker.model.step(begun.batch)))
            except BackendError as error:
                outcomes.append(error)
        first, second = outcomes
        if isinstance(first, BackendError):
            raise first
        if first != second:
            raise BackendError(f"rank 1 diverged: {second} is not {first}")
        return first

    def read_blocks(self, block_ids: Sequence[int], group: int, kept: int, out: memoryview) -> None:
        for rank, worker in enumerate(self._workers):
            part = part_of_rank(out, len(block_ids), rank, self.num_ranks)
            own = bytearray(part.size)
            worker.read_blocks(block_ids, group, kept, memoryview(own))
            part[:] = np.frombuffer(own, np.uint8).reshape(part.shape)

    def write_blocks(self, block_ids: Sequence[int], data: memoryview) -> None:
        for rank, worker in enumerate(self._workers):
            part = part_of_rank(data, len(block_ids), rank, self.num_ranks)
            worker.write_blocks(block_ids, memoryview(part.tobytes()))

    def call(self, method: str | Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        return [worker.call(method, *args, **kwargs) for worker in self._workers]

    def progress(self) -> int | None:
        counts = [worker.progress() for worker in self._workers]
        return None if None in counts else sum(count for count in counts if count is not None)

    def failure(self) -> str | None:
        return None

    def shutdown(self) -> None:
        for worker in self._workers:
            worker.close()
