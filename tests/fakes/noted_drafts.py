"""Notes what the worker proposes after each step."""

from __future__ import annotations

from typing import Any

import pytest

from quire.protocol import SchedulePlan, StepResult
from quire.scheduler.scheduler import Scheduler


def noted_drafts(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[int], list[int]]]:
    """A list that grows: the tokens of a request, and the draft tokens that follow them."""
    noted: list[tuple[list[int], list[int]]] = []
    update = Scheduler.update

    def update_and_note(scheduler: Scheduler, plan: SchedulePlan, result: StepResult) -> Any:
        outputs = update(scheduler, plan, result)
        for request_id, ids in result.next_drafts.items():
            request = scheduler.states.by_id.get(request_id)
            if request is not None:
                noted.append((request.token_ids.copy(), ids))
        return outputs

    monkeypatch.setattr(Scheduler, "update", update_and_note)
    return noted
