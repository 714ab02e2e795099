"""`Scheduler`: plans steps and takes in their results. The first and the third verb of a step.

Called by `EngineCore`. Knows requests, blocks and budgets; no tensor, no text, no clock
but for the time a request first ran.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

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
from quire.scheduler.in_flight import PlanInFlight
from quire.scheduler.integrity import check_states
from quire.scheduler.pacing.step_pacing import StepPacing
from quire.scheduler.queue import POLICIES
from quire.scheduler.request import FINISH_REASONS, Request, RequestStatus
from quire.scheduler.states import RequestStates
from quire.scheduler.step_planner import StepPlanner
from quire.scheduler.stored_kv.loads import PrefixLoads
from quire.scheduler.stored_kv.saves import ChunkSaves
from quire.system import clock

FollowGrammar = Callable[[str, list[int], int], bool]
"""Takes in a request's new tokens, behind which at most so many more may come. Whether it may
choose the next one at once; if not, `grammar_is_ready` says when."""


class Scheduler:
    """Lets every request catch up with its tokens, within the budget and the KV pool.

    Requests that generate are served before longer pieces, so that no prompt delays them by more
    than the budget. When blocks run out, the last in policy order gives all of its own back and
    computes them again later: the first one in order always advances, so everything finishes.

    Plans may be made before the results of earlier ones are known. A plan counts its tokens as
    computed at once, and may have a request whose next token an earlier plan still chooses: the
    worker has that token when it comes to it. Plans are computed, and their results collected, in
    the order in which they are made. What a result brings for a request that was preempted or
    finished since is dropped. Owned by the engine's thread.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        kv: KVCacheManager,
        max_model_len: int,
        follow_grammar: FollowGrammar | None = None,
        saves: ChunkSaves | None = None,
        loads: PrefixLoads | None = None,
    ) -> None:
        """`follow_grammar` is needed for requests that have one. `saves`, `loads`: what a KV store
        is given, and what may be loaded from it."""
        self.config = config
        self.kv = kv
        self.loads = loads
        self.states = RequestStates(kv, saves)
        self.in_flight: deque[PlanInFlight] = deque()
        """Plans whose results are not collected, the oldest first."""
        self.pacing = StepPacing(config)
        self._saves = saves
        self._max_model_len = max_model_len
        self._follow_grammar = follow_grammar
        self._num_arrived = 0
        self._planner = StepPlanner(config, kv, self.states, loads)

    def add_request(self, message: EngineCoreRequest) -> None:
        """Queues a request. Raises RequestError if its id is taken or it could never run."""
        if message.request_id in self.states.by_id:
            raise RequestError(f"a request with id {message.request_id!r} is being served already")
        key = POLICIES[self.config.policy](message, self._num_arrived)
        blocks = self.kv.open(message.cache_salt)
        request = Request(message, blocks, self._num_arrived, key, self._max_model_len)
        self._check_can_ever_run(request)
        if self._saves is not None:
            request.save_due = self._saves.first_due(request)
        if self.loads is not None and self.loads.must_look_up(request):
            request.status = RequestStatus.WAITING_FOR_REMOTE_KVS
        self._num_arrived += 1
        self.states.add(request)

    def grammar_is_ready(
        self, request_id: str, forced_token_ids: Sequence[int] = ()
    ) -> EngineCoreOutput | None:
        """An unfinished request with a grammar may start, or go on. Its next tokens are these,
        because the grammar allows no others: what they make of it; None if there are none."""
        request = self.states.by_id[request_id]
        self.states.grammar_is_ready(request)
        if not forced_token_ids:
            return None
        status = request.status
        self.pacing.forces(request)
        request.forced_token_ids = request.append_tokens([*forced_token_ids])
        output = self._output(request, request.forced_token_ids)
        if request.is_finished:
            # It ends in the state that it is in.
            output.finish_reason = FINISH_REASONS[request.status]
            output.stop_reason = request.stop_reason
            finished, request.status = request.status, status
            self._finish(request, finished)
        return output

    def end_with_error(
        self, request_id: str, error: str, *, is_unmet: bool = False
    ) -> EngineCoreOutput:
        """Ends an unfinished request that no plan in flight has, and that cannot go on; `is_unmet`:
        because of its own fields."""
        return self._end_with_error(self.states.by_id[request_id], error, is_unmet)

    def abort_request(self, request_id: str) -> None:
        """Ends a request between two steps; unknown and finished ids mean nothing."""
        request = self.states.by_id.get(request_id)
        if request is not None:
            self._finish(request, RequestStatus.FINISHED_ABORTED)

    def has_unfinished_requests(self) -> bool:
        """Whether requests wait or run, or plans are in flight. Held requests do not count."""
        return bool(len(self.states.by_id) > self.states.num_held or self.in_flight)

    def has_work(self) -> bool:
        """Whether there is more to do than to wait for grammars and for the KV store."""
        states = self.states
        return bool(self.in_flight or len(states.by_id) > states.num_idle + states.num_sitting_out)

    def hold_new(self) -> None:
        """Requests that come from now on wait until `release_held`. Idempotent."""
        self.states.hold_new()

    def release_held(self) -> None:
        """Ends `hold_new`. Idempotent."""
        self.states.release_held()

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Drops all cached prefixes. False, with none dropped, while requests hold blocks.

        `reset_running_requests`: they give their blocks back first, and compute their tokens again
        later; blocks that plans in flight need are kept.
        """
        self.cancel_loads()
        if reset_running_requests:
            for request in reversed(self.states.running.copy()):
                self.states.preempt(request)
        return self.kv.reset_prefix_cache()

    def leave_pool(self) -> None:
        """The memory of the block pool is about to be given back. No request holds blocks."""
        if self._saves is not None:
            self._saves.leave_pool()

    def cancel_loads(self) -> None:
        """Requests that wait for K/V from the store go on with what there is. Idempotent."""
        for load in [*self.states.loading.values()]:
            self.states.end_load(load)

    def use_fingerprint(self, fingerprint: str) -> None:
        """From now on K/V comes of a model with this fingerprint: no request holds blocks."""
        if self.kv.use_fingerprint(fingerprint):
            for request in self.states.by_id.values():
                request.blocks = self.kv.open(request.cache_salt)

    def schedule(self) -> SchedulePlan:
        """Decides the next step. A plan with requests must be executed, then given to `update` or
        `fail`. One without is nothing to execute: every request waits for a result in flight, for
        its grammar, or for K/V that is being loaded."""
        states = self.states
        step = PlanInFlight(self.pacing.budget(states.running, len(states.waiting)))
        self._planner.fill(step)
        if step.requests:
            step.complete(states.take_released())
            self.in_flight.append(step)
        elif (
            not self.in_flight
            and self.has_work()
            and not (states.loading or states.num_sitting_out)
        ):
            raise IntegrityError(f"{len(states.by_id)} requests, and none of them can run")
        return step.plan

    def update(self, plan: SchedulePlan, result: StepResult) -> EngineCoreOutputs:
        """Takes in what the oldest plan in flight computed and chose; ends requests that are
        done. Of each request's tokens those count that come before its end."""
        logprobs, of_prompts = result.logprobs, result.prompt_logprobs
        outputs: list[EngineCoreOutput] = []
        states = self.states
        num_before = len(states.by_id)
        step = self._take_oldest(plan)
        running = RequestStatus.RUNNING
        for request, count, sampled in zip(
            step.requests, plan.num_scheduled_tokens, result.sampled_token_ids, strict=True
        ):
            request.num_plans_in_flight -= 1
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
                if request.hands_off and self._saves is not None:
                    output.kv_name = self._saves.name_of_prompt(request)
                self.pacing.forget(request)
                states.finish_running(request)
        if len(states.by_id) < num_before:
            states.drop_finished()
        if result.failures:
            outputs += self._end_failed(step, result)
        self.pacing.result_came(self._num_arrived)
        return self._outputs(outputs)

    def observe(self, plan: SchedulePlan, duration_s: float) -> None:
        """Learns how long the oldest plan in flight took, for the pace of prompts."""
        budget = self.in_flight[0].budget
        self.pacing.observe(budget, plan.total_num_scheduled_tokens, duration_s)

    def fail(self, plan: SchedulePlan, error: str) -> EngineCoreOutputs:
        """Ends every request of the oldest plan in flight, whose execution failed."""
        failed = self._take_lost(plan)
        return self._outputs([self._end_with_error(request, error) for request in failed])

    def drop(self, plan: SchedulePlan) -> None:
        """Lets every request of the oldest plan in flight compute its tokens again, where nobody
        knows how much of the plan was done."""
        for request in self._take_lost(plan):
            self.states.preempt(request)
        self.states.release_again(plan.released_request_ids)

    def snapshot(self) -> EngineCoreOutputs:
        """The statistics, where no step has anything to tell."""
        return self._outputs([])

    def check_integrity(self) -> None:
        """Raises IntegrityError unless requests, queues, plans and blocks agree."""
        self.kv.check_integrity()
        check_states(self.states, self.in_flight, self.kv)

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

    def _take_oldest(self, plan: SchedulePlan) -> PlanInFlight:
        if not self.in_flight or self.in_flight[0].plan is not plan:
            raise IntegrityError("a result came that is not the oldest plan's")
        return self.in_flight.popleft()

    def _take_lost(self, plan: SchedulePlan) -> list[Request]:
        """Takes the oldest plan out, which was not computed. Returns its requests that still run.

        Those that a later plan starts compute their tokens again: their cached prefixes may be
        what the lost plan should have computed.
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
        """Has a grammar take in its request's new tokens."""
        if self._follow_grammar is None:
            raise IntegrityError(f"nobody follows the grammar of {request.request_id}")
        most = request.max_total_tokens - request.num_tokens
        request.awaits_mask = not self._follow_grammar(request.request_id, token_ids, most)

    def _finish(self, request: Request, status: RequestStatus) -> None:
        self.pacing.forget(request)
        self.states.finish(request, status)

    def _end_failed(self, step: PlanInFlight, result: StepResult) -> list[EngineCoreOutput]:
        """Ends the requests of a step that cannot go on."""
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
        """What another engine may have computed behind the full blocks of a request's prompt."""
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
        return EngineCoreOutputs(
            outputs=outputs, stats=self.states.take_stats(), timestamp=clock.now()
        )
