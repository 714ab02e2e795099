"""`PlanInFlight`: a plan whose result is not collected yet, together with its requests.

Created and kept by the scheduler; executors never see it.
"""

from __future__ import annotations

from quire.protocol import ScheduledRequest, SchedulePlan
from quire.scheduler.pacing import StepBudget
from quire.scheduler.request import Request


class PlanInFlight:
    """Requests are added to its plan one by one; after `complete` the plan does not change.

    It refers to `Request` objects, because by the time the result arrives, an id may belong to
    another request.
    """

    __slots__ = ("_counts", "budget", "plan", "requests")

    def __init__(self, budget: StepBudget) -> None:
        self.budget = budget
        self.plan = SchedulePlan(
            request_ids=[],
            num_scheduled_tokens=[],
            copied_block_ids=[],
            started={},
            new_block_ids={},
            released_request_ids=[],
            structured_output_request_ids=[],
            draft_token_ids={},
            num_next_drafts={},
        )
        self.requests: list[Request] = []
        """Parallel to the plan's `request_ids`."""
        self._counts = self.plan.num_scheduled_tokens

    def add(self, request: Request, count: int) -> None:
        """Plans the next `count` tokens of a request and counts them as computed. Tokens beyond
        `num_tokens` are its draft tokens."""
        end = request.num_computed_tokens + count
        if request.draft_token_ids:
            drafts = request.draft_token_ids[: max(0, end - request.num_tokens)]
            request.draft_token_ids = []
            if drafts:
                self.plan.draft_token_ids[request.request_id] = drafts
                request.num_drafts_in_flight = len(drafts)
        request.num_computed_tokens = end
        request.num_plans_in_flight += 1
        self.requests.append(request)
        self._counts.append(count)
        is_generating = end >= request.num_tokens
        if is_generating:
            request.is_generating = True
            if request.num_next_drafts:
                self.plan.num_next_drafts[request.request_id] = request.num_next_drafts
            if request.has_grammar:
                self.plan.structured_output_request_ids.append(request.request_id)

    def complete(self, released_request_ids: list[str]) -> None:
        """Completes the plan after all requests were added. `released_request_ids`: requests that
        the worker must forget before the step."""
        if len({request.adapter for request in self.requests}) > 1:
            self._group_by_adapter()
        plan = self.plan
        plan.released_request_ids = released_request_ids
        plan.request_ids = [request.request_id for request in self.requests]

    def _group_by_adapter(self) -> None:
        """Puts the rows of each adapter together, which takes less time to compute. Requests with
        one adapter keep their order: one may read K/V that an earlier one writes."""
        pairs = [*zip(self.requests, self._counts, strict=True)]
        pairs.sort(key=lambda pair: pair[0].adapter)
        self.requests[:] = [request for request, _ in pairs]
        self._counts[:] = [count for _, count in pairs]

    def start(self, request: Request, count: int) -> None:
        """Plans the next `count` tokens of a request that the worker does not know."""
        blocks = request.blocks
        request.draft_token_ids = []
        request.num_next_drafts = 0
        self.plan.started[request.request_id] = ScheduledRequest(
            request_id=request.request_id,
            token_ids=request.token_ids.copy(),
            num_prompt_tokens=request.num_prompt_tokens,
            sampling_params=request.sampling_params,
            pooling_params=request.pooling_params,
            block_ids=[table.copy() for table in blocks.tables],
            first_entries=blocks.first_entries.copy(),
            num_computed_tokens=request.num_computed_tokens,
            banned_token_ids=request.banned_token_ids,
            reasoning=request.reasoning,
            adapter=request.adapter,
            input_rows=request.input_rows,
        )
        self.add(request, count)

    def settle(self, request: Request, count: int, num_sampled: int) -> int:
        """Takes back the draft tokens that the step rejected. `count`: tokens of the request in
        this plan; `num_sampled`: tokens that the step sampled for it. Returns how many of the
        `count` tokens are computed."""
        if request.num_drafts_in_flight:
            num_wrong = request.num_drafts_in_flight - max(0, num_sampled - 1)
            request.num_drafts_in_flight = 0
            request.num_computed_tokens -= num_wrong
            count -= num_wrong
        return count

    def started(self) -> list[Request]:
        """The requests that this plan starts."""
        return [one for one in self.requests if one.request_id in self.plan.started]
