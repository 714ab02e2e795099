"""`UniProcExecutor`: runs one worker in this process, on the caller's thread."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from quire.config.records import EngineConfig
from quire.errors import BackendError
from quire.executor.base import Executor
from quire.executor.runners import make_runner, may_begin_ahead
from quire.executor.turns import Turns
from quire.protocol import SchedulePlan, StepResult
from quire.worker.extension import worker_class
from quire.worker.model_runner import BegunStep
from quire.worker.prompt_adapters import PromptAdapters
from quire.worker.worker import Worker


class UniProcExecutor(Executor):
    """Computes a plan by a function call when it is collected; nothing is copied or sent.

    Where the model keeps sampled tokens, a plan is begun when it is submitted, and the next one
    before it is collected.
    """

    def __init__(self, config: EngineConfig) -> None:
        turns = config.device.turns
        self._turns = None if turns is None else Turns(turns)
        self._turn: AbstractContextManager[None] = self._turns or nullcontext()
        self._worker = worker_class(config, Worker)(config)
        self.prompt_adapters = PromptAdapters(config)
        self._begins_at_once = self._worker.model.keeps_tokens and may_begin_ahead(config)
        if self._begins_at_once:
            self.max_plans_in_flight = 2
        self._runner = make_runner(
            config,
            self._worker.model,
            self._worker.adapters.get,
            self.prompt_adapters.find,
            keeps_tokens=self._begins_at_once,
        )
        self._submitted: deque[SchedulePlan] = deque()
        self._begun: deque[tuple[BegunStep, Any] | BackendError] = deque()

    def submit(self, plan: SchedulePlan) -> None:
        if not self._begins_at_once:
            self._submitted.append(plan)
            return
        self._runner.model = self._worker.model
        try:
            begun = self._runner.begin(plan)
            self._begun.append((begun, self._worker.submit(begun.batch)))
        except BackendError as error:
            self._begun.append(error)

    def collect(self) -> StepResult:
        if self._begins_at_once:
            first = self._begun.popleft()
            if isinstance(first, BackendError):
                raise first
            step, work = first
            return self._runner.finish(step, self._worker.collect(work))
        self._runner.model = self._worker.model  # other weights are another model
        begun = self._runner.begin(self._submitted.popleft())
        with self._turn:
            self.began_at = time.perf_counter()
            computed = self._worker.step(begun.batch)
        return self._runner.finish(begun, computed)

    def read_blocks(self, block_ids: Sequence[int], group: int, kept: int, out: memoryview) -> None:
        self._worker.read_blocks(block_ids, group, kept, out)

    def write_blocks(self, block_ids: Sequence[int], data: memoryview) -> None:
        self._worker.write_blocks(block_ids, data)

    def load_adapter(self, path: str, name: str) -> dict[str, Any]:
        return self._worker.load_adapter(path, name)

    def drop_adapter(self, digest: str) -> None:
        self._worker.drop_adapter(digest)

    def call(self, method: str | Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        return [self._worker.call(method, *args, **kwargs)]

    @property
    def driver_worker(self) -> Worker:
        """The worker."""
        return self._worker

    @property
    def has_new_weights(self) -> bool:
        return self._worker.has_new_weights

    def failure(self) -> str | None:
        return None  # the worker lives as long as the engine

    def progress(self) -> int | None:
        if self._turns is not None and self._turns.is_waiting:
            return -time.monotonic_ns()  # another engine computes; its own watch looks after it
        return self._worker.progress()

    def shutdown(self) -> None:
        self._worker.close()
        if self._turns is not None:
            self._turns.close()
