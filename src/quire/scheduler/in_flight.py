"""`PlanInFlight`: a plan whose result is not collected yet, together with its requests, created and
kept by the scheduler; `StepPacing`: limits the prompt tokens of a step in which others generate.

The scheduler calls the pacing once for each plan and each result. It decides only how known tokens
are cut into pieces, which does not change the tokens of any answer. `StepCosts` keeps how long
steps take, and `StepBudget` has the tokens of one step, which the planner hands out.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from itertools import islice
from statistics import median

from quire.config.records import SchedulerConfig
from quire.protocol import ScheduledRequest, SchedulePlan
from quire.protocol.input_rows import InputRows
from quire.scheduler.request import Request, RequestQueue
from quire.scheduler.stages import prompt_rows_of_plan

_WINDOW = 15
"""Number of durations kept of each kind. Their median ignores a step that was interrupted."""
_UNKNOWN_LIMIT = 128
"""Limit on prompt tokens until both costs are known."""
_LIMIT_UNIT = 8
"""Limits are multiples of this."""
_MIN_LIMIT = 16
"""Lower bound of limits, so that prompts always advance."""
_MOST_PROMPT_S = 0.5
"""Most seconds of a step with a long prompt: a new request waits for the step under way."""
_FEWEST_OF_STEP = 256
"""Prompt tokens of a step that these seconds do not reduce further."""
NUM_LOOKED_AT = 32
"""Waiting requests whose lengths are looked at."""
_WEIGHT_OF_OTHERS = 0.5
"""Below 1, because a gap within a reply is worse than a later first token."""


class StepCosts:
    """Keeps the time of a generating step within `max_slowdown` times that of generating alone.

    On a CPU the time of a step grows with its tokens, so a whole budget of prompt tokens would let
    all generating requests wait for seconds. Both costs are measured on the steps themselves.
    """

    def __init__(self, max_slowdown: float | None) -> None:
        """`max_slowdown`: None: prompt tokens are not limited."""
        self._max_slowdown = max_slowdown
        self._generating_s: deque[float] = deque(maxlen=_WINDOW)
        self._per_token_s: deque[float] = deque(maxlen=_WINDOW)

    @property
    def generating_s(self) -> float:
        """Seconds of a step without prompt tokens; 0: not known yet."""
        return median(self._generating_s) if self._generating_s else 0.0

    def limit(self, num_delayed: int, num_others: int) -> int:
        """Most prompt tokens for a step that delays `num_delayed` generating requests.

        `num_others`: further requests that run or could run. If they are many more than the
        delayed ones, the limit is higher.
        """
        if self._max_slowdown is None:
            return sys.maxsize
        weight = max(1.0, _WEIGHT_OF_OTHERS * num_others / num_delayed)
        if not self._generating_s or not self._per_token_s:
            return int(_UNKNOWN_LIMIT * weight)
        spare_s = (self._max_slowdown - 1) * median(self._generating_s) * weight
        count = int(spare_s / max(median(self._per_token_s), 1e-9))
        return max(_MIN_LIMIT, count // _LIMIT_UNIT * _LIMIT_UNIT)

    def most_prompt_tokens(self) -> int:
        """Most prompt tokens of a step that a new request does not wait long for."""
        if self._max_slowdown is None or not self._per_token_s:
            return sys.maxsize
        count = int(_MOST_PROMPT_S / max(median(self._per_token_s), 1e-9))
        return max(_FEWEST_OF_STEP, count // _LIMIT_UNIT * _LIMIT_UNIT)

    def observe(self, duration_s: float, num_generating: int, num_prompt_tokens: int) -> None:
        """Records the duration of a step."""
        if not num_prompt_tokens:
            self._generating_s.append(duration_s)
        elif num_prompt_tokens >= _MIN_LIMIT and (self._generating_s or not num_generating):
            base_s = median(self._generating_s) if num_generating else 0.0
            self._per_token_s.append(max(0.0, duration_s - base_s) / num_prompt_tokens)


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
        self._longest_short = 0
        """Tokens of the longest prompt that counts as short; 0: nothing is kept for such."""
        self._num_kept = 0
        """Prompt tokens that are left for short prompts alone."""
        self._is_short = False
        """Whether `chunk` was last asked for a short prompt."""

    def __bool__(self) -> bool:
        return self._num_left > 0

    def delay_for(self, began: list[int], num_others: int, costs: StepCosts) -> None:
        """Limits prompt tokens, so that generating requests are not delayed too much. `began`: for
        each of them, how many requests had arrived before its reply began, in any order;
        `num_others`: requests that wait for their first token and could run."""
        self._costs = costs
        self._began = sorted(began)
        self._num_requests = len(began) + num_others

    @property
    def half(self) -> int:
        """Half of the prompt tokens: prompts of at most as many can be called short."""
        return min(self._num_left, self._max_prompts) // 2

    def keep_for_short(self) -> None:
        """Keeps half of the prompt tokens for short prompts, which are not longer than that: so
        they need not wait for the ends of long ones."""
        self._longest_short = self._num_kept = self.half

    def keeps_room_for(self, count: int) -> bool:
        """Whether a short prompt of so many tokens fits in what is kept for such."""
        return count <= self._num_kept

    def chunk(self, request: Request, count: int) -> int:
        """Number of its next `count` tokens that a request may compute in the step."""
        self._is_short = not request.is_generating and count <= self._longest_short
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
        num_left = min(self._num_left, self._max_prompts - self.num_spent)
        if not self._is_short:
            num_left -= self._num_kept
        count = max(0, min(count, self._max_chunk, num_left))
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
            if self._is_short:
                self._num_kept = max(0, self._num_kept - count)


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
        elif config.enable_chunked_prefill and has_prompts:
            max_prompts = self._most_prompt_tokens(running, waiting)
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

    def _most_prompt_tokens(
        self, running: Sequence[Request], waiting: RequestQueue | Sequence[Request]
    ) -> int:
        """Most prompt tokens of a step. Only a prompt that alone takes longer has a bound: others
        are computed in fewer steps without one."""
        most = self.costs.most_prompt_tokens()
        prompts = [one for one in running if not one.is_generating]
        prompts += islice(waiting, NUM_LOOKED_AT)
        is_long = any(one.num_tokens - one.num_computed_tokens > most for one in prompts)
        return most if is_long else sys.maxsize

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
