"""`StepBudget`: the tokens of one step, which `StepPacing` bounds and the planner hands out."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Sequence

from quire.protocol.input_rows import InputRows
from quire.scheduler.pacing.step_costs import StepCosts
from quire.scheduler.request import Request


class StepBudget:
    """The tokens of one step, handed out piece by piece.

    One token for each request that generates is set aside from the start.
    """

    def __init__(self, num_tokens: int, max_chunk: int = 0, max_prompts: int = sys.maxsize) -> None:
        """`num_tokens`: tokens in addition to those set aside; `max_chunk`: most tokens of one
        prompt (0: no bound); `max_prompts`: most tokens of all prompts, unless a span is longer."""
        self.num_spent = 0
        """Tokens spent on prompts."""
        self._num_left = num_tokens
        self._max_chunk = max_chunk or num_tokens
        self._max_prompts = max_prompts
        self._costs: StepCosts | None = None
        self._began: list[int] = []
        self._num_requests = 0

    def __bool__(self) -> bool:
        return self._num_left > 0

    def delay_for(self, began: list[int], num_others: int, costs: StepCosts) -> None:
        """Limits prompt tokens, so that generating requests are not delayed too much. `began`: for
        each of them, how many requests had arrived before its reply began, in any order;
        `num_others`: requests that wait for their first token and could run."""
        self._costs = costs
        self._began = sorted(began)
        self._num_requests = len(began) + num_others

    def chunk(self, request: Request, count: int) -> int:
        """Number of its next `count` tokens that a request may compute in the step."""
        if request.is_generating:
            return 1 + min(count - 1, self._num_left)
        first = request.num_tokens - count
        return self._without_cut(request.input_rows, first, self._bounded(request, count))

    def _without_cut(self, given: Sequence[InputRows], first: int, count: int) -> int:
        """The largest part of `count` tokens from `first` on that cuts no span: a span is computed
        in one step. If `first` is in a span, the rest of the span, or 0 if it does not fit."""
        for one in given:
            if one.is_span and one.first < first + count < one.end:
                if one.first > first:
                    return one.first - first
                return one.end - first if one.end - first <= self._num_left else 0
        return count

    def _bounded(self, request: Request, count: int) -> int:
        count = min(count, self._max_chunk, self._num_left, self._max_prompts - self.num_spent)
        num_delayed = bisect_right(self._began, request.number)
        if self._costs is not None and num_delayed:
            limit = self._costs.limit(num_delayed, self._num_requests - num_delayed)
            count = min(count, limit - self.num_spent)
        return count

    def take_drafts(self, count: int) -> int:
        """Spend room of the step for up to `count` draft tokens; returns the number that fits."""
        taken = max(0, min(count, self._num_left))
        self._num_left -= taken
        return taken

    def spend(self, request: Request, count: int) -> None:
        """Takes the tokens that `chunk` gave to a request and that are planned."""
        if request.is_generating:
            self._num_left -= count - 1
        else:
            self._num_left -= count
            self.num_spent += count
