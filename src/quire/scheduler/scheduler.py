"""`Scheduler`: plans steps and processes their results (`schedule` and `update` of each step).

Called by `EngineCore`. Knows requests, blocks and budgets. Knows no tensors and no text, and reads
the clock only for timestamps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from quire.config.records import SchedulerConfig
from quire.errors import IntegrityError, RequestError
from quire.kvcache import KVCacheManager, Tail
from quire.protocol import (
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    SchedulePlan,
    StepResult,
)
from quire.scheduler.drafting.drafting import Drafting, LookAhead
from quire.scheduler.drafting.proposers import proposer_of
from quire.scheduler.in_flight import PlanInFlight, StepPacing
from quire.scheduler.integrity import check_states
from quire.scheduler.request import FINISH_REASONS, POLICIES, Request, RequestStatus
from quire.scheduler.states import RequestStates
from quire.scheduler.step_planner import StepPlanner
from quire.scheduler.stored_kv.loads import PrefixLoads
from quire.scheduler.stored_kv.saves import ChunkSaves
from quire.system import clock

FollowGrammar = Callable[[str, list[int]], bool]
"""Advances the grammar of a request by its new tokens. Returns whether the mask of the next token
is ready; if not, the request waits for `grammar_is_ready`."""


class Scheduler:
    """Lets every request catch up with its tokens, within the budget and the KV pool.

    Requests that generate are served before longer pieces of prompts, so that no prompt delays them
    by more than the budget. When blocks run out, the last request in policy order is preempted: it
    releases all of its blocks and computes its tokens again later. The first request in policy
    order always advances, so every request finishes.

    Plans may be made before the results of earlier plans are known. A plan counts its tokens as
    computed at once, and may contain a request whose next token an earlier plan still has to
    sample: the worker has that token when it executes the plan. Plans are executed, and their
    results collected, in the order in which they were made. Results for a request that was
    preempted or finished in the meantime are dropped. Owned by the engine's thread.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        kv: KVCacheManager,
        max_model_len: int,
        vocab_size: int,
        follow_grammar: FollowGrammar | None = None,
        look_ahead: LookAhead | None = None,
        saves: ChunkSaves | None = None,
        loads: PrefixLoads | None = None,
    ) -> None:
        """`follow_grammar` is needed for requests that have a grammar, and `look_ahead` for draft
        tokens of such requests. `saves` and `loads` connect a KV store."""
        self.config = config
        self.kv = kv
        self.loads = loads
        self.states = RequestStates(kv, saves)
        self.in_flight: deque[PlanInFlight] = deque()
        """Plans whose results are not collected yet, oldest first."""
        self.pacing = StepPacing(config)
        speculation = config.speculation
        self.drafting = (
            None
            if speculation is None
            else Drafting(speculation, look_ahead, proposer_of(speculation, vocab_size))
        )
        self._saves = saves
        self._asks_far = loads is not None and loads.asks_far
        self._max_model_len = max_model_len
        self._longest = kv.longest(max_model_len)
        """The most tokens of a request that runs alone."""
        self._follow_grammar = follow_grammar
        self._num_arrived = 0
        self._planner = StepPlanner(config, kv, self.states, loads)

    def add_request(self, message: EngineCoreRequest) -> None:
        """Queues a request. Raises RequestError if its id is in use or if it could never run."""
        if message.request_id in self.states.by_id:
            raise RequestError(f"a request with id {message.request_id!r} is being served already")
        key = POLICIES[self.config.policy](message, self._num_arrived)
        blocks = self.kv.open(message.scope, message.adapter, message.input_rows, message.lora)
        request = Request(message, blocks, self._num_arrived, key, self._max_model_len)
        self._check_can_ever_run(request)
        if self._saves is not None:
            request.save_due = self._saves.first_due(request)
        loads = self.loads if self._asks_far or request.goes_on else None
        if loads is not None and loads.must_look_up(request):
            request.status = RequestStatus.WAITING_FOR_REMOTE_KVS
        self._num_arrived += 1
        self.states.add(request)

    def grammar_is_ready(self, request_id: str) -> None:
        """Lets an unfinished request with a grammar start or continue."""
        self.states.grammar_is_ready(self.states.by_id[request_id])

    def end_with_error(
        self, request_id: str, error: str, *, is_unmet: bool = False
    ) -> EngineCoreOutput:
        """Ends an unfinished request that is in no plan in flight. `is_unmet`: its own parameters
        caused the error."""
        return self._end_with_error(self.states.by_id[request_id], error, is_unmet)

    def abort_request(self, request_id: str) -> None:
        """Ends a request between two steps; ignores unknown and finished ids."""
        request = self.states.by_id.get(request_id)
        if request is not None:
            self._finish(request, RequestStatus.FINISHED_ABORTED)

    def has_unfinished_requests(self) -> bool:
        """Whether requests wait or run, or plans are in flight; held requests are not counted."""
        return bool(len(self.states.by_id) > self.states.num_held or self.in_flight)

    def has_work(self) -> bool:
        """Whether there is work other than waiting for grammars or for the KV store."""
        states = self.states
        return bool(self.in_flight or len(states.by_id) > states.num_idle + states.num_sitting_out)

    def hold_new(self) -> None:
        """Holds requests that arrive from now on, until `release_held`. Idempotent."""
        self.states.hold_new()

    def release_held(self) -> None:
        """Ends `hold_new`. Idempotent."""
        self.states.release_held()

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Drops all cached prefixes. Returns False and drops nothing while requests hold blocks.

        `reset_running_requests`: preempts running requests first, so that they compute their
        tokens again later; blocks that plans in flight need are kept.
        """
        self.cancel_loads()
        if reset_running_requests:
            for request in reversed(self.states.running.copy()):
                self.states.preempt(request)
        return self.kv.reset_prefix_cache()

    def leave_pool(self) -> None:
        """Prepares for the release of the block pool's memory. No request holds blocks."""
        if self._saves is not None:
            self._saves.leave_pool()

    def cancel_loads(self) -> None:
        """Lets requests that wait for K/V from the store continue with what is loaded.
        Idempotent."""
        for load in [*self.states.loading.values()]:
            self.states.end_load(load)

    def use_fingerprint(self, fingerprint: str) -> None:
        """Uses the fingerprint of the model that computes K/V from now on. No request holds
        blocks."""
        if self.kv.use_fingerprint(fingerprint):
            for request in self.states.by_id.values():
                lora = request.blocks.lora
                request.blocks = self.kv.open(
                    request.scope, request.adapter, request.input_rows, lora
                )

    def schedule(self) -> SchedulePlan:
        """Plans the next step. A plan with requests must be executed, then passed to `update`,
        `fail` or `drop`. An empty plan need not be executed: every request waits for a result in
        flight, for its grammar, or for K/V that is being loaded."""
        states, drafting = self.states, self.drafting
        if drafting is not None and not self.in_flight:
            drafting.give(states.running)
        step = PlanInFlight(self.pacing.budget(states.running, states.waiting))
        if not self._waits_for_stages():
            self._planner.fill(step)
        if step.requests:
            step.complete(states.take_released())
            self.in_flight.append(step)
        elif (
            not self.in_flight
            and self.has_work()
            and not (states.loading or states.num_sitting_out)
        ):
            raise IntegrityError(f"none of {len(states.by_id)} requests can run")
        return step.plan

    def update(self, plan: SchedulePlan, result: StepResult) -> EngineCoreOutputs:
        """Processes the result of the oldest plan in flight and ends requests that are done. Tokens
        that a step sampled after the end of a request are dropped."""
        logprobs, of_prompts = result.logprobs, result.prompt_logprobs
        outputs: list[EngineCoreOutput] = []
        states = self.states
        num_before = len(states.by_id)
        step = self._take_oldest(plan)
        running, drafting = RequestStatus.RUNNING, self.drafting
        for request, count, sampled in zip(
            step.requests, plan.num_scheduled_tokens, result.sampled_token_ids, strict=True
        ):
            request.num_plans_in_flight -= 1
            if drafting is not None and request.num_drafts_in_flight:
                drafting.checked(request, request.num_drafts_in_flight, max(0, len(sampled) - 1))
            count = step.settle(request, count, len(sampled))
            if request.status is not running:
                states.collected(request)
                continue
            request.num_collected_tokens += count
            if request.num_collected_tokens >= request.save_due and self._saves is not None:
                self._saves.advanced(request)
            request_id = request.request_id
            prompt_logprobs = of_prompts.get(request_id) if of_prompts else None
            pooled = result.pooled.get(request_id) if result.pooled else None
            if not sampled and prompt_logprobs is None and pooled is None:
                continue
            new_token_ids = request.append_tokens(sampled)
            if drafting is not None:
                request.proposed_token_ids = result.next_drafts.get(request_id, [])
            if request.has_grammar and new_token_ids and not request.is_finished:
                self._follow(request, new_token_ids)
            output = self._output(request, new_token_ids)
            output.prompt_logprobs = prompt_logprobs
            if pooled is not None:
                output.pooled = pooled
                request.status = RequestStatus.FINISHED_STOPPED
            if logprobs and request_id in logprobs:
                output.logprobs = logprobs[request_id][: len(new_token_ids)]
            outputs.append(output)
            if request.status is not running:
                output.finish_reason = FINISH_REASONS[request.status]
                output.stop_reason = request.stop_reason
                output.spec_decode_metrics = request.spec_decode_metrics
                output.prediction = request.prediction
                if request.hands_off and self._saves is not None:
                    output.kv_name = self._saves.name_of_prompt(request)
                self._forget(request)
                states.finish_running(request)
        if len(states.by_id) < num_before:
            states.drop_finished()
        if result.failures:
            outputs += self._end_failed(step, result)
        self.pacing.result_came(self._num_arrived)
        if drafting is not None:
            drafting.result_came(had_prompts=step.budget.num_spent > 0)
        return self._outputs(outputs)

    def observe(self, plan: SchedulePlan, duration_s: float) -> None:
        """Records how long the oldest plan in flight took, for the limits on prompt tokens and for
        draft tokens."""
        budget, num_tokens = self.in_flight[0].budget, sum(plan.num_scheduled_tokens)
        if self.drafting is not None and not budget.num_spent:
            num_drafts = sum(map(len, plan.draft_token_ids.values()))
            num_next = sum(plan.num_next_drafts.values())
            self.drafting.observe(num_tokens + max(0, num_next - num_drafts), duration_s)
        if not plan.draft_token_ids:
            self.pacing.observe(budget, num_tokens, duration_s)

    def fail(self, plan: SchedulePlan, error: str) -> EngineCoreOutputs:
        """Ends every request of the oldest plan in flight, whose execution failed."""
        failed = self._take_lost(plan)
        return self._outputs([self._end_with_error(request, error) for request in failed])

    def drop(self, plan: SchedulePlan) -> None:
        """Preempts every request of the oldest plan in flight, because it is unknown how much of
        the plan was executed. They compute their tokens again."""
        for request in self._take_lost(plan):
            self.states.preempt(request)
        self.states.release_again(plan.released_request_ids)

    def snapshot(self) -> EngineCoreOutputs:
        """The statistics alone, for when there is no step result."""
        return self._outputs([])

    def check_integrity(self) -> None:
        """Raises IntegrityError unless requests, queues, plans and blocks agree."""
        self.kv.check_integrity()
        speculation = self.config.speculation
        most_drafts = 0
        if speculation is not None:  # a draft model has room for the drafts of the next step too
            most_drafts = speculation.num_speculative_tokens * (1 + speculation.has_model)
        check_states(self.states, self.in_flight, self.kv, most_drafts)

    def _waits_for_stages(self) -> bool:
        """Whether each stage has a plan. A further plan keeps the first stage busy until the next
        result is there; a request that generates would wait for that plan, too."""
        num_stages = self.config.num_stages
        return (
            num_stages > 1
            and len(self.in_flight) >= num_stages
            and any(request.is_generating for request in self.states.running)
        )

    def _check_can_ever_run(self, request: Request) -> None:
        longest = self._longest
        if longest < request.max_total_tokens:
            raise RequestError(
                f"the request may grow to {request.max_total_tokens} tokens, and the KV cache "
                f"holds {longest}; ask for at most {longest - request.num_prompt_tokens} "
                "output tokens, or start the engine with a larger KV cache",
                parameter="max_tokens",
                value=request.sampling_params.max_tokens,
            )

    def _take_oldest(self, plan: SchedulePlan) -> PlanInFlight:
        if not self.in_flight or self.in_flight[0].plan is not plan:
            raise IntegrityError("the result does not belong to the oldest plan in flight")
        return self.in_flight.popleft()

    def _take_lost(self, plan: SchedulePlan) -> list[Request]:
        """Removes the oldest plan, which was not computed. Returns its requests that still run.

        Requests that a later plan starts are preempted: their cached prefixes may be blocks that
        the lost plan should have computed.
        """
        kv, states = self.kv, self.states
        step = self._take_oldest(plan)
        for request in step.requests:
            request.num_plans_in_flight -= 1
            request.num_drafts_in_flight = 0
            kv.withdraw(request.blocks, request.num_collected_tokens)
            if request in states.leaving:
                states.collected(request)
        for later in self.in_flight:
            for request in later.started():
                kv.withdraw(request.blocks, request.num_collected_tokens)
                if request.status is RequestStatus.RUNNING:
                    states.preempt(request)
        return [one for one in step.requests if one.status is RequestStatus.RUNNING]

    def _follow(self, request: Request, token_ids: list[int]) -> None:
        """Advances the grammar of a request by its new tokens."""
        if self._follow_grammar is None:
            raise IntegrityError(f"{request.request_id} has a grammar without follow_grammar")
        request.awaits_mask = not self._follow_grammar(request.request_id, token_ids)

    def _finish(self, request: Request, status: RequestStatus) -> None:
        self._forget(request)
        self.states.finish(request, status)

    def _forget(self, request: Request) -> None:
        """The request is finished."""
        self.pacing.forget(request)
        if self.drafting is not None:
            self.drafting.forget(request)

    def _end_failed(self, step: PlanInFlight, result: StepResult) -> list[EngineCoreOutput]:
        """Ends the requests for which the step failed."""
        outputs = []
        for request in step.requests:
            error = result.failures.get(request.request_id)
            if error is not None and request.status is RequestStatus.RUNNING:
                self.kv.forget(request.blocks, self._tail(request))
                if self._saves is not None:
                    self._saves.forget(request)
                is_unmet = request.request_id in result.unmet
                outputs.append(self._end_with_error(request, error, is_unmet))
        return outputs

    def _tail(self, request: Request) -> Tail | None:
        """The tail of the request's prompt, if another engine may have computed it."""
        if not request.goes_on:
            return None
        return self.kv.tail_of(request.blocks, request.token_ids, request.num_prompt_tokens)

    def _end_with_error(
        self, request: Request, error: str, is_unmet: bool = False
    ) -> EngineCoreOutput:
        self._finish(request, RequestStatus.FINISHED_ERROR)
        return EngineCoreOutput(
            request_id=request.request_id, finish_reason="error", error=error, is_unmet=is_unmet
        )

    def _output(self, request: Request, token_ids: list[int]) -> EngineCoreOutput:
        return EngineCoreOutput(
            request_id=request.request_id,
            new_token_ids=token_ids,
            num_cached_tokens=request.num_cached_tokens,
            loaded_tokens=request.loaded_tokens,
            num_preemptions=request.num_preemptions,
            scheduled_time=request.scheduled_time,
        )

    def _outputs(self, outputs: list[EngineCoreOutput]) -> EngineCoreOutputs:
        stats = self.states.take_stats()
        if self.drafting is not None:
            stats.speculation = self.drafting.take_stats()
        return EngineCoreOutputs(outputs=outputs, stats=stats, timestamp=clock.now())
