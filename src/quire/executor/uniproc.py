"""`UniProcExecutor`: one worker, in this process and on the caller's thread."""

from __future__ import annotations

from quire.config.records import EngineConfig
from quire.executor.base import Executor
from quire.protocol import SchedulePlan, StepResult
from quire.worker import Worker


class UniProcExecutor(Executor):
    """A plan is one function call away from the model: nothing is copied or sent."""

    def __init__(self, config: EngineConfig) -> None:
        self._worker = Worker(config)

    def execute(self, plan: SchedulePlan) -> StepResult:
        return self._worker.execute(plan)

    def progress(self) -> int | None:
        return self._worker.progress()

    def shutdown(self) -> None:
        self._worker.close()
