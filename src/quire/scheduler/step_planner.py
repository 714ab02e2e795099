"""`StepPlanner`: fills one plan with requests, as the budget and the KV pool allow.

Called by the scheduler for each plan. Knows nothing of results.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import islice
from operator import attrgetter

from quire.config.records import SchedulerConfig
from quire.errors import IntegrityError
from quire.kvcache import CachedPrefix, KVCacheManager
from quire.scheduler.in_flight import NUM_LOOKED_AT, PlanInFlight, StepBudget
from quire.scheduler.request import Request, RequestStatus
from quire.scheduler.states import RequestStates
from quire.scheduler.stored_kv.loads import PrefixLoads


class StepPlanner:
    """Plans running requests, then starts waiting ones. Changes their states and blocks."""

    def __init__(
        self,
        config: SchedulerConfig,
        kv: KVCacheManager,
        states: RequestStates,
        loads: PrefixLoads | None = None,
    ) -> None:
        """`loads`: needed with a KV store."""
        self._loads = loads
        self._config = config
        self._kv = kv
        self._states = states
        self._left = 0
        """How many generating requests the plan may still have, with several stages."""
        self._has_room = True
        """Whether all running requests had blocks so far in the plan."""

    def fill(self, step: PlanInFlight) -> None:
        """Adds requests to the plan; adds nothing if every request has to wait."""
        states = self._states
        # Stages compute at once, so each plan has a part of the requests.
        self._left = -(-len(states.running) // self._config.num_stages)
        self._has_room = True
        if self._config.max_decode_slowdown is not None and self._has_short(step.budget):
            step.budget.keep_for_short()
        rest = self._serve_urgent(step)
        num_preemptions = states.counts.num_preemptions
        self._plan_running(step, rest)
        if self._has_room and states.counts.num_preemptions == num_preemptions:
            self._admit_waiting(step)
        for copy in self._kv.take_copies():
            step.plan.copied_block_ids.append([copy.sources, copy.targets])

    def _has_short(self, budget: StepBudget) -> bool:
        """Whether a short prompt is there that a long one could keep waiting."""
        longest, states = budget.half, self._states
        lengths = [one.num_tokens - one.num_computed_tokens for one in states.running
                   if not one.is_generating]  # fmt: skip
        is_long = any(length > longest for length in lengths)
        is_short = any(length <= longest for length in lengths)
        for request in islice(states.waiting, NUM_LOOKED_AT):
            if is_long and is_short:
                break
            missing = self._num_missing(request)
            is_long, is_short = is_long or missing > longest, is_short or missing <= longest
        return is_long and is_short

    def _num_missing(self, request: Request) -> int:
        """Tokens of a waiting request that are not cached."""
        return request.num_tokens - self._cached(request).num_tokens(self._kv.block_size)

    def _serve_urgent(self, step: PlanInFlight) -> list[Request]:
        """Starts waiting requests of a lower level than running ones, which are preempted where
        there is no room. Plans the running requests that go before them. Returns the others."""
        states, is_started = self._states, True
        rest = states.running
        while is_started and rest:
            urgent = self._next_waiting(may_preempt=True)
            if urgent is None or urgent.level >= rest[-1].level:
                break
            num_ahead = bisect_right(rest, urgent.level, key=attrgetter("level"))
            ahead, rest = rest[:num_ahead], rest[num_ahead:]
            self._plan_running(step, ahead)
            is_started = (
                self._has_room
                and self._make_room(step, urgent)
                and self._admit(step, urgent, self._num_promised_blocks()) is not None
            )
        return rest

    def _make_room(self, step: PlanInFlight, urgent: Request) -> bool:
        """Preempts requests of higher levels until a waiting one can start. Returns False if it has
        to wait: for tokens of the budget, for others of its own or a lower level, or until plans in
        flight are done with what preempted requests held."""
        states, kv = self._states, self._kv
        prefix = self._cached(urgent)
        if states.has_row(urgent.request_id) or not self._first_chunk(step, urgent, prefix):
            return False
        lower = [one for one in states.running if one.level > urgent.level]
        most = sum(one.blocks.num_held for one in (*states.leaving, *lower))
        most += sum(kv.num_missing(one.blocks, one.num_tokens) for one in lower)
        if self._num_blocks_short(urgent, prefix) > most:
            return False  # to preempt all of them would be in vain
        if not self._has_adapter_slot(urgent):
            for one in self._with_last_adapter():
                states.preempt(one)
        while True:
            short = self._num_blocks_short(urgent, prefix)
            num_rows = self._num_rows() - len(states.running)
            if short <= 0 < num_rows:
                return True
            coming = sum(one.blocks.num_held for one in states.leaving)
            is_coming = short <= coming and num_rows + len(states.leaving) > 0
            last = states.running[-1] if states.running else urgent
            if is_coming or last.level <= urgent.level:
                return False
            states.preempt(last)

    def _num_blocks_short(self, request: Request, prefix: CachedPrefix) -> int:
        """How many blocks are missing to start a waiting request with a cached prefix."""
        promised = self._num_promised_blocks()
        return promised - self._kv.num_free_after(request.num_tokens, prefix)

    def _has_adapter_slot(self, request: Request) -> bool:
        """Whether a step may have the adapter of a waiting request too."""
        most = self._config.max_loras
        if most is None or not request.adapter:
            return True
        used = {one.adapter for one in self._states.running if one.adapter}
        return request.adapter in used or len(used) < most

    def _with_last_adapter(self) -> list[Request]:
        """The running requests with the adapter whose first request comes last, in order."""
        by_adapter: dict[str, list[Request]] = {}
        for one in self._states.running:
            if one.adapter:
                by_adapter.setdefault(one.adapter, []).append(one)
        return max(by_adapter.values(), key=lambda requests: requests[0].sort_key)

    def _plan_running(self, step: PlanInFlight, running: Iterable[Request]) -> None:
        """Plans requests that run, in order. `_has_room` is False if some of them lack blocks."""
        budget, add = step.budget, step.add
        num_stages, runs = self._config.num_stages, RequestStatus.RUNNING
        for request in running:  # `_grow` removes from the end of all that run
            blocks = request.blocks
            if request.awaits_mask or request.status is not runs:
                continue
            if request.num_drafts_in_flight:
                continue  # a plan in flight decides which of its draft tokens are accepted
            count = request.num_tokens - request.num_computed_tokens
            if count < 1:
                if request.num_computed_tokens + 1 >= request.max_total_tokens:
                    continue  # a plan in flight samples its last token
                if request.waits_for_tokens or num_stages > 1:
                    continue  # a plan in flight samples the token that it continues from
                count = 1
            if num_stages > 1 and request.is_generating:
                if not self._left:
                    continue
                self._left -= 1
            takes_budget = count > 1 or not request.is_generating
            if takes_budget:
                count = budget.chunk(request, count)
                if count <= 0:
                    continue
                count = self._kv.within_snapshot(blocks, request.num_computed_tokens, count)
            elif request.draft_token_ids and request.num_tokens > request.num_computed_tokens:
                room = request.max_total_tokens - request.num_tokens - 1
                wanted = min(len(request.draft_token_ids), room)
                wanted = self._kv.most_drafts(blocks, request.num_tokens, wanted)
                count += budget.take_drafts(wanted)
            num_after = request.num_computed_tokens + count
            if request.num_next_drafts:
                room = request.max_total_tokens - num_after - 1
                wanted = max(0, min(request.num_next_drafts, room))
                request.num_next_drafts = self._kv.most_drafts(blocks, num_after, wanted)
                num_after += request.num_next_drafts
            if num_after >= blocks.due:
                added = self._grow(request, num_after) if self._has_room else None
                if added is None:
                    self._has_room = False
                    continue
                if added:
                    step.plan.new_block_ids[request.request_id] = added
            if request.num_computed_tokens >= blocks.snapshot_due:
                self._kv.take_snapshot(blocks, request.token_ids, request.num_computed_tokens)
            if takes_budget:
                budget.spend(request, count)
            add(request, count)

    def _grow(self, request: Request, num_tokens: int) -> list[list[int]] | None:
        """Allocates blocks for `num_tokens`, preempting from the end of `running` as needed.

        None: the request itself was the last one and is preempted, or it has to wait until plans
        in flight are done with the blocks of leaving requests.
        """
        states = self._states
        while True:
            added = self._kv.allocate_slots(
                request.blocks, request.token_ids, request.num_collected_tokens, num_tokens
            )
            if added is not None:
                return added
            if states.leaving:
                return None
            victim = states.running[-1]
            states.preempt(victim)
            if victim is request:
                return None

    def _admit_waiting(self, step: PlanInFlight) -> None:
        """Starts requests in policy order, while the next one fits with all its tokens."""
        states = self._states
        if not states.waiting:
            return
        promised = self._num_promised_blocks()
        while step.budget and len(states.running) < self._num_rows():
            request = self._next_waiting()
            if request is None or states.has_row(request.request_id):
                return
            num_promised = self._admit(step, request, promised)
            if num_promised is None and (short := self._next_short(step, request)) is not None:
                num_promised = self._admit(step, short, promised)
            if num_promised is None:
                return
            promised += num_promised

    def _next_short(self, step: PlanInFlight, head: Request) -> Request | None:
        """The first short prompt that may pass a long one, for which the step has no tokens left.
        None: there is none, or the long one lacks blocks, which others must not take."""
        if self._first_chunk(step, head, self._cached(head)):
            return None
        states = self._states
        shorts = [
            one
            for one in islice(states.waiting, NUM_LOOKED_AT)
            if one.level == head.level
            and not states.has_row(one.request_id)
            and self._has_adapter_slot(one)
            and step.budget.keeps_room_for(self._num_missing(one))
        ]
        return min(shorts, key=attrgetter("sort_key"), default=None)

    def _admit(self, step: PlanInFlight, request: Request, promised: int) -> int | None:
        """Starts a waiting request, or begins to load its prefix, if blocks for all its tokens are
        free in addition to those that are promised. Returns how many are promised to it; None: it
        has to wait."""
        kv, prefix = self._kv, self._cached(request)
        if kv.num_free_after(request.num_tokens, prefix) < promised:
            return None
        is_short = prefix.num_entries < (request.num_tokens - 1) // kv.block_size
        if self._loads is not None and request.may_load and (is_short or request.goes_on):
            load = self._loads.plan(request, prefix)
            if load is not None:
                self._states.begin_load(load)
                return load.num_promised
        count = self._first_chunk(step, request, prefix)
        if not count:
            return None
        step.budget.spend(request, count)
        self._start(step, request, prefix, count)
        return kv.num_missing(request.blocks, request.num_tokens)

    def _num_rows(self) -> int:
        """How many requests may run: the others of `max_num_seqs` are loading or leaving."""
        states = self._states
        return self._config.max_num_seqs - len(states.loading) - len(states.leaving)

    def _next_waiting(self, *, may_preempt: bool = False) -> Request | None:
        """The next waiting request. One whose adapter has no slot lets others without one pass.
        `may_preempt`: requests of higher levels give their slots up."""
        request = self._states.waiting.peek()
        if request is None or self._has_adapter_slot(request):
            return request
        if may_preempt and self._with_last_adapter()[0].level > request.level:
            return request
        return self._states.waiting.peek((False,))

    def _cached(self, request: Request) -> CachedPrefix:
        """The prefix with which a waiting request would start."""
        if request.skip_reading_cache:
            return self._kv.no_prefix()
        return self._kv.get_computed_blocks(
            request.blocks, request.token_ids, with_tail=request.goes_on
        )

    def _first_chunk(self, step: PlanInFlight, request: Request, prefix: CachedPrefix) -> int:
        """How many tokens after its cached prefix a waiting request may compute in the step; 0: it
        cannot start."""
        missing = request.num_tokens - prefix.num_tokens(self._kv.block_size)
        count = max(0, step.budget.chunk(request, missing))
        return count if count == missing or self._config.enable_chunked_prefill else 0

    def _num_promised_blocks(self) -> int:
        """Blocks that running requests, and requests whose prefixes are being loaded, still need
        for tokens that they already have."""
        of_loads = sum([load.num_promised for load in self._states.loading.values()])
        return of_loads + sum(
            [
                self._kv.num_missing(request.blocks, request.num_tokens)
                for request in self._states.running
                if request.num_tokens > request.num_computed_tokens
            ]
        )

    def _start(
        self, step: PlanInFlight, request: Request, prefix: CachedPrefix, count: int
    ) -> None:
        kv, blocks = self._kv, request.blocks
        num_cached = prefix.num_tokens(kv.block_size)
        kv.take_hits(blocks, prefix)
        count = kv.within_snapshot(blocks, num_cached, count)
        if kv.allocate_slots(blocks, request.token_ids, num_cached, num_cached + count) is None:
            raise IntegrityError(f"{request.request_id} was admitted without room")
        self._states.start(request, num_cached)
        step.start(request, count)
