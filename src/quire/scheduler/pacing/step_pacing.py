"""`StepPacing`: how many prompt tokens, and tokens that grammars force, may ride along in a step
that others generate in.

Called by the scheduler once for each plan and each result. What it decides is only how tokens that
are known are cut into pieces, which changes no bit of any answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.config.records import SchedulerConfig
from quire.scheduler.pacing.forced_rows import ForcedRows
from quire.scheduler.pacing.step_budget import StepBudget
from quire.scheduler.pacing.step_costs import StepCosts
from quire.scheduler.request import Request

_NOT_BEGUN = 1 << 62
"""In place of a number of arrivals, for a reply that does not run yet: later than any."""


class StepPacing:
    """The one place that tells requests that generate from those whose prompts are computed.

    A prompt is delayed for those alone whose reply ran before it came. Requests that came
    together all wait for the last of their prompts, as they would in any other order, and then
    generate together, which is what makes a burst, or a queue under overload, fast.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self.costs = StepCosts(config.max_decode_slowdown)
        self._forced_rows = ForcedRows()
        self._num_arrived = 0
        """When the last result was taken in."""
        self._began_after: dict[Request, int] = {}
        """How many had arrived when a request got its second token, from where on its reply runs:
        with the first, those who came at the same moment are still to be taken in."""

    def budget(self, running: Sequence[Request], num_waiting: int) -> StepBudget:
        """What a step has for prompts, after those who generate; `num_waiting` do not run yet."""
        config = self._config
        generating = [request for request in running if request.is_generating]
        num_startable = min(num_waiting, config.max_num_seqs - len(running))
        is_alone = len(running) + num_waiting <= 1
        budget = StepBudget(
            config.max_num_batched_tokens - len(generating),
            0 if is_alone else config.long_prefill_token_threshold,
        )
        has_prompts = num_waiting > 0 or len(generating) < len(running)
        has_new_replies = len(self._began_after) < len(generating)
        delays_prompts = config.max_decode_slowdown is not None
        if delays_prompts and (has_prompts or has_new_replies):
            began = [self._began_after.get(one) or self._begin(one) for one in generating]
            num_others = len(running) - len(generating) + num_startable
            budget.delay_for(began, num_others, self.costs)
        if self._forced_rows.is_used:
            budget.further_rows = self._forced_rows.shares(generating, self.costs)
        return budget

    def forces(self, request: Request) -> None:
        """The request's grammar has forced tokens."""
        self._forced_rows.add(request)

    def result_came(self, num_arrived: int) -> None:
        """A result was taken in; so many requests had arrived by then."""
        self._num_arrived = num_arrived

    def forget(self, request: Request) -> None:
        """The request is finished."""
        self._began_after.pop(request, None)
        self._forced_rows.forget(request)

    def observe(self, budget: StepBudget, num_tokens: int, duration_s: float) -> None:
        """Learns from a step of so many tokens, which was planned with `budget`."""
        num_prompt_tokens = budget.num_spent
        self.costs.observe(duration_s, num_tokens - num_prompt_tokens, num_prompt_tokens)

    def _begin(self, request: Request) -> int:
        """How many had arrived when its reply began to run, which may be now."""
        if request.num_output_tokens < 2:
            return _NOT_BEGUN
        self._began_after[request] = self._num_arrived
        return self._num_arrived
