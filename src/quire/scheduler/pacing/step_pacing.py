"""`StepPacing`: limits the prompt tokens of a step in which others generate.

Called by the scheduler once for each plan and each result. It decides only how known tokens are cut
into pieces, which does not change the tokens of any answer.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from itertools import islice
from math import isqrt

from quire.config.records import SchedulerConfig
from quire.scheduler.pacing.step_budget import StepBudget
from quire.scheduler.pacing.step_costs import StepCosts
from quire.scheduler.queue import RequestQueue
from quire.scheduler.request import Request

_NOT_BEGUN = 1 << 62
"""Number of arrivals for a reply that has not begun: larger than any real one."""


class StepPacing:
    """The one place that distinguishes generating requests from those whose prompts are computed.

    A prompt is slowed down only in favour of requests whose reply began before the prompt arrived.
    Requests that arrived together all wait for the last of their prompts, and then generate
    together. This gives the best throughput in a burst, or with a long queue.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self.costs = StepCosts(config.max_decode_slowdown)
        self._num_arrived = 0
        """Number of requests that had arrived when the last result was processed."""
        self._began_after: dict[Request, int] = {}
        """For each request, how many requests had arrived when it got its second token. Its reply
        begins there: at the first token, requests that arrived at the same moment may still be
        missing from the count."""

    def budget(
        self, running: Sequence[Request], waiting: RequestQueue | Sequence[Request]
    ) -> StepBudget:
        """The token budget of the next step, without the tokens of generating requests.
        `waiting`: requests that do not run yet."""
        config, num_waiting = self._config, len(waiting)
        generating = [request for request in running if request.is_generating]
        num_startable = min(num_waiting, config.max_num_seqs - len(running))
        is_alone = len(running) + num_waiting <= 1
        has_prompts = num_waiting > 0 or len(generating) < len(running)
        max_prompts = sys.maxsize
        if config.num_stages > 1 and config.enable_chunked_prefill and has_prompts:
            max_prompts = prompt_rows_of_plan(config.num_stages, running, waiting)
        budget = StepBudget(
            config.max_num_batched_tokens - len(generating),
            0 if is_alone else config.long_prefill_token_threshold,
            max_prompts,
        )
        has_new_replies = len(self._began_after) < len(generating)
        delays_prompts = config.max_decode_slowdown is not None
        if delays_prompts and (has_prompts or has_new_replies):
            began = [self._began_after.get(one) or self._begin(one) for one in generating]
            num_others = len(running) - len(generating) + num_startable
            budget.delay_for(began, num_others, self.costs)
        return budget

    def result_came(self, num_arrived: int) -> None:
        """Records how many requests had arrived when a result was processed."""
        self._num_arrived = num_arrived

    def forget(self, request: Request) -> None:
        """The request is finished."""
        self._began_after.pop(request, None)

    def observe(self, budget: StepBudget, num_tokens: int, duration_s: float) -> None:
        """Records the duration of a step of `num_tokens` tokens that was planned with `budget`."""
        num_prompt_tokens = budget.num_spent
        self.costs.observe(duration_s, num_tokens - num_prompt_tokens, num_prompt_tokens)

    def _begin(self, request: Request) -> int:
        """Number of requests that had arrived when the reply of `request` began; it may begin
        now."""
        if request.num_output_tokens < 2:
            return _NOT_BEGUN
        self._began_after[request] = self._num_arrived
        return self._num_arrived


_STEP_ROWS = 8
"""The time that a step takes in addition to that of its rows, in rows: reading the weights, and the
calls of the ranks."""
_PIECE = 16
"""Pieces are multiples of this."""
_MOST_WAITING = 64
"""Most waiting requests that are counted."""


def prompt_rows_of_plan(
    num_stages: int, running: Iterable[Request], waiting: Iterable[Request]
) -> int:
    """The number of prompt tokens in each plan with which all stages are done soonest.

    A prompt that is computed in one plan leaves all stages but one without work; in pieces, the
    first stage computes a piece while the next one computes the piece before.

    n tokens in pieces of c take (n / c + stages - 1) * (c + `_STEP_ROWS`) on each stage: many
    pieces keep all stages busy, and few of them read the weights seldom. This is least at
    c * c = n * `_STEP_ROWS` / (stages - 1).
    """
    prompts = [one for one in running if not one.is_generating]
    prompts += islice(waiting, _MOST_WAITING)
    count = sum(one.num_tokens - one.num_cached_tokens for one in prompts)
    rows = isqrt(count * _STEP_ROWS // (num_stages - 1))
    return max(1, -(-rows // _PIECE)) * _PIECE
