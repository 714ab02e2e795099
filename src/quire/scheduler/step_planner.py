"""`StepPlanner`: fills one plan with requests, as the budget and the KV pool allow.

Called by the scheduler for each plan. Knows nothing of results.
"""

from __future__ import annotations

from quire.config.records import SchedulerConfig
from quire.errors import IntegrityError
from quire.kvcache import CachedPrefix, KVCacheManager
from quire.scheduler.in_flight import PlanInFlight
from quire.scheduler.request import Request
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

    def fill(self, step: PlanInFlight) -> None:
        """Adds requests to the plan; adds nothing if every request has to wait."""
        num_preemptions = self._states.counts.num_preemptions
        has_room = self._plan_running(step)
        if has_room and self._states.counts.num_preemptions == num_preemptions:
            self._admit_waiting(step)
        for copy in self._kv.take_copies():
            step.plan.copied_block_ids.append([copy.sources, copy.targets])

    def _plan_running(self, step: PlanInFlight) -> bool:
        """Returns False if some running requests lack blocks."""
        budget, add = step.budget, step.add
        num_stages = self._config.num_stages
        # Stages compute at once, so each plan has a part of the requests.
        left = -(-len(self._states.running) // num_stages)
        has_room = True
        for request in self._states.running:  # `_grow` removes from its end
            blocks = request.blocks
            if request.awaits_mask:
                continue
            if request.num_drafts_in_flight:
                continue  # a plan in flight decides which of its draft tokens are accepted
            count = request.num_tokens - request.num_computed_tokens
            if count < 1:
                if request.num_computed_tokens + 1 >= request.max_total_tokens:
                    continue  # a plan in flight samples its last token
                if request.has_grammar or num_stages > 1:
                    continue  # a plan in flight samples the token that it continues from
                count = 1
            if num_stages > 1 and request.is_generating:
                if not left:
                    continue
                left -= 1
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
                added = self._grow(request, num_after) if has_room else None
                if added is None:
                    has_room = False
                    continue
                if added:
                    step.plan.new_block_ids[request.request_id] = added
            if request.num_computed_tokens >= blocks.snapshot_due:
                self._kv.take_snapshot(blocks, request.token_ids, request.num_computed_tokens)
            if takes_budget:
                budget.spend(request, count)
            add(request, count)
        return has_room

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
        """The one admission loop: in policy order, while the next request fits with all its
        tokens."""
        states, budget, kv = self._states, step.budget, self._kv
        if not states.waiting:
            return
        promised = self._num_promised_blocks()
        num_rows = self._config.max_num_seqs - len(states.loading) - len(states.leaving)
        while states.waiting and budget and len(states.running) < num_rows:
            request = states.waiting.peek()
            if states.has_row(request.request_id):
                return
            if request.skip_reading_cache:
                prefix = kv.no_prefix()
            else:
                prefix = kv.get_computed_blocks(
                    request.blocks, request.token_ids, with_tail=request.goes_on
                )
            if kv.num_free_after(request.num_tokens, prefix) < promised:
                return
            if self._loads is not None and request.may_load:
                load = self._loads.plan(request, prefix)
                if load is not None:
                    states.begin_load(load)
                    promised += load.num_promised
                    num_rows -= 1
                    continue
            missing = request.num_tokens - prefix.num_tokens(kv.block_size)
            count = budget.chunk(request, missing)
            if count <= 0 or (count < missing and not self._config.enable_chunked_prefill):
                return
            budget.spend(request, count)
            self._start(step, request, prefix, count)
            promised += kv.num_missing(request.blocks, request.num_tokens)

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
