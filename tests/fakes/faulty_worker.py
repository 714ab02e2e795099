"""Workers that break, for `worker_cls`: what a rank does when it raises or stands still."""

from __future__ import annotations

from quire.backends.base import StepBatch, StepOutput
from quire.worker.worker import Worker


class RaisingWorker(Worker):
    """Rank 1 raises in a step, after the others have begun it."""

    def step(self, batch: StepBatch) -> StepOutput:
        if self.rank.number == 1:
            raise RuntimeError("a bit has flipped")
        return super().step(batch)


class SkippingWorker(Worker):
    """Rank 1 computes a step twice, and is then at another exchange than the others."""

    def step(self, batch: StepBatch) -> StepOutput:
        if self.rank.number == 1:
            self._groups[0].begin(batch.token_ids)
        return super().step(batch)
