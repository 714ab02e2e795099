"""`BareModel`: a compiled model whose steps a test writes, without K/V; `run` takes a step, whose
plan `plan_of` makes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from quire.backends.base import CompiledModel, MemoryReport, SamplingColumns, StepBatch, StepOutput
from quire.program import OpPlace
from quire.protocol import ScheduledRequest, SchedulePlan, StepResult
from quire.worker.model_runner import ModelRunner


class BareModel(CompiledModel):
    """A subclass has `step`."""

    def sample(self, logits: np.ndarray, columns: SamplingColumns) -> StepOutput:
        raise NotImplementedError

    def find_not_finite(self, batch: StepBatch) -> list[OpPlace | None]:
        raise NotImplementedError

    def read_blocks(self, block_ids: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def write_blocks(self, block_ids: np.ndarray, data: np.ndarray) -> None:
        raise NotImplementedError

    def clear_behind(self, block: np.ndarray, group: int, kept: int) -> None:
        raise NotImplementedError

    def discard_kv(self) -> None:
        raise AssertionError

    def memory(self) -> MemoryReport:
        return MemoryReport(0, 0, 0)

    def close(self) -> None:
        pass


def plan_of(
    work: dict[str, int],
    *start: ScheduledRequest,
    grow: Mapping[str, list[int]] | None = None,
    release: Iterable[str] = (),
) -> SchedulePlan:
    """A plan of a step: numbers of tokens by request, and blocks that requests get."""
    return SchedulePlan(
        request_ids=list(work),
        num_scheduled_tokens=list(work.values()),
        started={one.request_id: one for one in start},
        new_block_ids={name: [added] for name, added in (grow or {}).items()},
        released_request_ids=list(release),
    )


def run(runner: ModelRunner, plan: SchedulePlan) -> StepResult:
    begun = runner.begin(plan)
    return runner.finish(begun, runner.model.step(begun.batch))
