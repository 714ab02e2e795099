"""Notes what the worker proposes after each step, and what the scheduler has checked in a step."""

from __future__ import annotations

from typing import Any

import pytest

from quire.protocol import SchedulePlan, StepResult
from quire.scheduler.in_flight import PlanInFlight
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


def counted_drafts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows: how many requests of a plan have draft tokens."""
    counts: list[int] = []
    complete = PlanInFlight.complete

    def complete_and_count(step: PlanInFlight, released_request_ids: list[str]) -> None:
        complete(step, released_request_ids)
        counts.append(len(step.plan.draft_token_ids))

    monkeypatch.setattr(PlanInFlight, "complete", complete_and_count)
    return counts
