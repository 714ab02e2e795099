"""`Scheduler`: plans steps and takes in their results. The first and the third verb of a step.

Called by `EngineCore`. Knows requests, blocks and budgets; no tensor, no text, no clock
but for the time a request first ran.
"""

from __future__ import annotations

import bisect
import time
from operator import attrgetter

from quire.config.records import SchedulerConfig
from quire.errors import IntegrityError, RequestError
from quire.kvcache import CachedPrefix, KVCacheManager
from quire.protocol import (
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    ScheduledRequest,
    SchedulePlan,
    SchedulerStats,
    StepResult,
)
from quire.scheduler.counts import Counts
from quire.scheduler.integrity import check_requests
from quire.scheduler.pacing import PrefillPacer, StepBudget
from quire.scheduler.queue import POLICIES, RequestQueue
from quire.scheduler.request import FINISH_REASONS, NOT_BEGUN, Request, RequestStatus

_by_sort_key = attrgetter("sort_key")


class Scheduler:
    """Lets every request catch up with its tokens, within the budget and the KV pool.

    Requests that need one token (they generate) are served before longer pieces, so that no
    prompt delays them by more than the budget. When blocks run out, the last in policy order
    gives all of its own back and computes them again later: the first one in order always
    advances, so everything finishes. Owned by the engine's thread.

    Invariants between steps: `running` is in policy order; each running request holds the
    blocks of its computed tokens, as far as its next token sees them; a waiting one holds none.
    """

    def __init__(self, config: SchedulerConfig, kv: KVCacheManager, max_model_len: int) -> None:
        self.config = config
        self.kv = kv
        self.running: list[Request] = []
        self.waiting = RequestQueue()
        self._requests: dict[str, Request] = {}
        self._released: list[str] = []
        """What the worker holds and must forget before the next step."""
        self._max_model_len = max_model_len
        self._num_arrived = 0
        self._counts = Counts()
        slowdown = config.max_decode_slowdown
        self._pacer = None if slowdown is None else PrefillPacer(slowdown)

    def add_request(self, message: EngineCoreRequest) -> None:
        """Queues a request. Raises RequestError if its id is taken or it could never run."""
        if message.request_id in self._requests:
            raise RequestError(f"a request with id {message.request_id!r} is being served already")
        key = POLICIES[self.config.policy](message, self._num_arrived)
        blocks = self.kv.open(message.cache_salt)
        request = Request(message, blocks, self._num_arrived, key, self._max_model_len)
        self._check_can_ever_run(request)
        self._num_arrived += 1
        self._requests[request.request_id] = request
        self.waiting.push(request)

    def abort_request(self, request_id: str) -> None:
        """Ends a request between two steps; unknown and finished ids mean nothing."""
        request = self._requests.get(request_id)
        if request is not None:
            self._finish(request, RequestStatus.FINISHED_ABORTED)

    def has_unfinished_requests(self) -> bool:
        """Whether `schedule` would find anything to do."""
        return bool(self._requests)

    def get_num_unfinished_requests(self) -> int:
        """Waiting and running requests."""
        return len(self._requests)

    def schedule(self) -> SchedulePlan:
        """Decides the next step. The plan must be executed, then given to `update` or `fail`."""
        plan = SchedulePlan(
            request_ids=[],
            num_scheduled_tokens=[],
            started={},
            new_block_ids={},
            released_request_ids=self._released,
        )
        self._released = []
        num_preemptions = self._counts.num_preemptions
        budget = self._step_budget()
        self._schedule_running(plan, budget)
        if self.waiting and self._counts.num_preemptions == num_preemptions:
            self._admit_waiting(plan, budget)
        if not plan.request_ids and self._requests:
            raise IntegrityError(f"{len(self._requests)} requests, and none of them can run")
        return plan

    def update(self, plan: SchedulePlan, result: StepResult) -> EngineCoreOutputs:
        """Takes in what an executed plan computed and sampled; ends requests that are done."""
        requests, logprobs, of_prompts = self._requests, result.logprobs, result.prompt_logprobs
        outputs: list[EngineCoreOutput] = []
        num_before = len(requests)
        for request_id, num_scheduled, sampled in zip(
            plan.request_ids, plan.num_scheduled_tokens, result.sampled_token_ids, strict=True
        ):
            request = requests.get(request_id)
            if request is None:
                continue
            request.num_computed_tokens += num_scheduled
            prompt_logprobs = of_prompts.get(request_id) if of_prompts else None
            if not sampled and prompt_logprobs is None:
                continue
            new_token_ids = request.append_tokens(sampled)
            if request.began_after == NOT_BEGUN and request.num_output_tokens > 1:
                request.began_after = self._num_arrived
            output = EngineCoreOutput(
                request_id=request_id,
                new_token_ids=new_token_ids,
                logprobs=logprobs.get(request_id) if logprobs else None,
                prompt_logprobs=prompt_logprobs,
                num_cached_tokens=request.num_cached_tokens,
                num_preemptions=request.num_preemptions,
                scheduled_time=request.scheduled_time,
            )
            outputs.append(output)
            if request.is_finished:
                output.finish_reason = FINISH_REASONS[request.status]
                output.stop_reason = request.stop_reason
                self._give_back(request)
        if len(requests) < num_before:
            self.running = [request for request in self.running if not request.is_finished]
        for request_id, error in result.failures.items():
            if (failed := requests.get(request_id)) is not None:
                self.kv.forget(failed.blocks)
                outputs.append(self._end_failed(failed, error))
        return self._outputs(outputs)

    def observe(self, plan: SchedulePlan, duration_s: float) -> None:
        """Learns how long an executed plan took, for the pace of prompts."""
        counts = plan.num_scheduled_tokens
        if self._pacer is not None and counts:
            num_generating = counts.count(1)
            self._pacer.observe(duration_s, num_generating, sum(counts) - num_generating)

    def fail(self, plan: SchedulePlan, error: str) -> EngineCoreOutputs:
        """Ends every request of a plan whose execution failed; the others go on."""
        planned = [self._requests.get(request_id) for request_id in plan.request_ids]
        return self._outputs([self._end_failed(one, error) for one in planned if one is not None])

    def check_integrity(self) -> None:
        """Raises IntegrityError unless requests, queues and blocks agree."""
        self.kv.check_integrity()
        check_requests(self._requests.values(), self.running, len(self.waiting), self.kv)

    def _check_can_ever_run(self, request: Request) -> None:
        longest = self.kv.longest(request.max_total_tokens)
        if longest < request.max_total_tokens:
            raise RequestError(
                f"the request may grow to {request.max_total_tokens} tokens, and the KV cache "
                f"holds {longest}; ask for at most {longest - request.num_prompt_tokens} "
                "output tokens, or start the engine with a larger KV cache",
                parameter="max_tokens",
                value=request.sampling_params.max_tokens,
            )

    def _step_budget(self) -> StepBudget:
        """What is left for prompts of a step in which those who generate come first."""
        config, running = self.config, self.running
        began = [r.began_after for r in running if r.num_tokens - r.num_computed_tokens == 1]
        num_startable = min(len(self.waiting), config.max_num_seqs - len(running))
        return StepBudget(
            config.max_num_batched_tokens - len(began),
            config.long_prefill_token_threshold if len(self._requests) > 1 else 0,
            self._pacer,
            began,
            num_waiting=len(running) - len(began) + num_startable,
        )

    def _schedule_running(self, plan: SchedulePlan, budget: StepBudget) -> None:
        """Plans the running requests."""
        running = self.running
        request_ids, counts = plan.request_ids, plan.num_scheduled_tokens
        index = 0
        while index < len(running):
            request = running[index]
            index += 1
            count = request.num_tokens - request.num_computed_tokens
            if count > 1:
                count = budget.chunk(request.number, count)
                if count <= 0:
                    continue
                budget.spend(count)
            num_after = request.num_computed_tokens + count
            if num_after >= request.blocks.due:
                added = self._grow(plan, request, num_after)
                if added is None:
                    break
                if added:
                    plan.new_block_ids[request.request_id] = added
            request_ids.append(request.request_id)
            counts.append(count)

    def _grow(
        self, plan: SchedulePlan, request: Request, num_tokens: int
    ) -> list[list[int]] | None:
        """Blocks for `num_tokens`, preempting from the end of `running` as needed.

        None: the request itself was the last, and is preempted.
        """
        while True:
            added = self.kv.allocate_slots(
                request.blocks, request.token_ids, request.num_computed_tokens, num_tokens
            )
            if added is not None:
                return added
            victim = self.running.pop()
            self._preempt(plan, victim)
            if victim is request:
                return None

    def _preempt(self, plan: SchedulePlan, request: Request) -> None:
        self.kv.free(request.blocks, request.num_computed_tokens)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        self._counts.num_preemptions += 1
        plan.released_request_ids.append(request.request_id)
        self.waiting.push(request)

    def _admit_waiting(self, plan: SchedulePlan, budget: StepBudget) -> None:
        """The one admission loop: in policy order, while the next one fits with all its tokens."""
        promised = self._num_promised_blocks()
        while self.waiting and budget and len(self.running) < self.config.max_num_seqs:
            request = self.waiting.peek()
            if request.skip_reading_cache:
                prefix = self.kv.no_prefix()
            else:
                prefix = self.kv.get_computed_blocks(request.blocks, request.token_ids)
            if self.kv.num_free_after(request.num_tokens, prefix) < promised:
                return
            num_cached = prefix.num_entries * self.kv.block_size
            missing = request.num_tokens - num_cached
            count = budget.chunk(request.number, missing)
            if count <= 0 or (count < missing and not self.config.enable_chunked_prefill):
                return
            self.waiting.pop()
            self._start(plan, request, prefix, count)
            promised += self.kv.num_missing(request.blocks, request.num_tokens)
            budget.spend(count)

    def _num_promised_blocks(self) -> int:
        """Blocks that running requests still need for tokens that they have already."""
        return sum(
            [
                self.kv.num_missing(request.blocks, request.num_tokens)
                for request in self.running
                if request.num_tokens - request.num_computed_tokens > 1
            ]
        )

    def _start(
        self, plan: SchedulePlan, request: Request, prefix: CachedPrefix, count: int
    ) -> None:
        kv, blocks = self.kv, request.blocks
        num_cached = prefix.num_entries * kv.block_size
        kv.take_hits(blocks, prefix)
        if kv.allocate_slots(blocks, request.token_ids, num_cached, num_cached + count) is None:
            raise IntegrityError(f"{request.request_id} was admitted without room")
        if request.scheduled_time is None:
            request.scheduled_time = time.time()
            request.num_cached_tokens = num_cached
            self._counts.num_queried_tokens += request.num_tokens
            self._counts.num_hit_tokens += num_cached
        request.status = RequestStatus.RUNNING
        request.num_computed_tokens = num_cached
        bisect.insort(self.running, request, key=_by_sort_key)
        plan.request_ids.append(request.request_id)
        plan.num_scheduled_tokens.append(count)
        plan.started[request.request_id] = ScheduledRequest(
            request_id=request.request_id,
            token_ids=request.token_ids.copy(),
            num_prompt_tokens=request.num_prompt_tokens,
            sampling_params=request.sampling_params,
            block_ids=[table.copy() for table in blocks.tables],
            first_entries=blocks.first_entries.copy(),
            num_computed_tokens=num_cached,
            banned_token_ids=request.banned_token_ids,
        )

    def _finish(self, request: Request, status: RequestStatus) -> None:
        if request.status is RequestStatus.RUNNING:
            self.running.remove(request)
            self._give_back(request)
        else:
            self.waiting.remove(request)
            del self._requests[request.request_id]
        request.status = status

    def _end_failed(self, request: Request, error: str) -> EngineCoreOutput:
        self._finish(request, RequestStatus.FINISHED_ERROR)
        return EngineCoreOutput(request_id=request.request_id, finish_reason="error", error=error)

    def _give_back(self, request: Request) -> None:
        self._released.append(request.request_id)
        self.kv.free(request.blocks, request.num_computed_tokens)
        del self._requests[request.request_id]

    def _outputs(self, outputs: list[EngineCoreOutput]) -> EngineCoreOutputs:
        counts, self._counts = self._counts, Counts()
        stats = SchedulerStats(
            num_running=len(self.running),
            num_waiting=len(self.waiting),
            kv_cache_usage=self.kv.usage,
            num_prefix_queried_tokens=counts.num_queried_tokens,
            num_prefix_hit_tokens=counts.num_hit_tokens,
            num_preemptions=counts.num_preemptions,
        )
        return EngineCoreOutputs(outputs=outputs, stats=stats, timestamp=time.time())
