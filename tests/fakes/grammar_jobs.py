"""Runners of grammar jobs that do what a test says, instead of threads."""

from __future__ import annotations

import random
from collections.abc import Sequence

from quire.structured.manager import Job, StructuredOutputManager

WAIT_S = 60.0


def followed(manager: StructuredOutputManager, request_id: str, token_ids: list[int]) -> list[int]:
    """What must follow these tokens."""
    if not manager.advance(request_id, token_ids):
        manager.run_masks(WAIT_S)
        [news] = manager.take_news(WAIT_S)
        assert (news.request_id, news.error) == (request_id, None)
    return manager.look_ahead(request_id, [])


class AtOnce:
    """Does each job where it is given."""

    def run(self, jobs: Sequence[Job], wait_s: float) -> None:  # noqa: ARG002
        for job in jobs:
            job.run()

    def shutdown(self) -> None:
        pass


class Late:
    """Keeps jobs for some turns, and does them in any order."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self.kept: list[Job] = []
        self.most_kept = 0

    def run(self, jobs: Sequence[Job], wait_s: float) -> None:  # noqa: ARG002
        self.kept += jobs
        self.most_kept = max(self.most_kept, len(self.kept))

    def turn(self) -> None:
        """Does about every third job."""
        jobs, self.kept = self.kept, []
        self._rng.shuffle(jobs)
        for job in jobs:
            if self._rng.random() < 0.3:
                job.run()
            else:
                self.kept.append(job)

    def shutdown(self) -> None:
        self.kept.clear()
