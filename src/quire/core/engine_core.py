"""`EngineCore`: plans, executes and collects steps, and runs commands between steps.

Driven by `LLMEngine`, or by an `EngineLoop` on its own thread or in its own process. Knows only
token ids: the front end handles text.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from quire.config.records import EngineConfig
from quire.core.adapters.manager import adapter_stages
from quire.core.capabilities import Capabilities
from quire.core.capability import Capability
from quire.core.commands import collective_rpc, record_ranks, reset_prefix_cache
from quire.core.engine_profiler import EngineProfiler
from quire.core.grammars import Grammars
from quire.core.images import image_stage
from quire.core.kv_events import BlockReports, kv_events
from quire.core.kv_transfers import BlockWriter, KVTransfers, MemoryAhead, stored_kv
from quire.core.pausing import EnginePause
from quire.errors import (
    BackendError,
    DeviceError,
    EngineDeadError,
    IntegrityError,
)
from quire.executor.base import Executor
from quire.executor.factory import make_executor
from quire.kvcache import KVCacheManager
from quire.kvcache.block_map import block_map
from quire.kvstore.opening import open_store
from quire.log import get_logger
from quire.protocol import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest, SchedulePlan
from quire.scheduler import Scheduler
from quire.structured.compile import GrammarCompiler
from quire.structured.manager import StructuredOutputManager
from quire.tokenizer.for_model import vocabulary_source

logger = get_logger(__name__)


@dataclass(slots=True)
class _SubmittedPlan:
    """A plan that was passed to the executor, and when (`time.perf_counter`)."""

    plan: SchedulePlan
    at: float
    error: Exception | None = None
    """Error that `Executor.submit` raised."""


class EngineCore:
    """Scheduler and executor of one model. Owned by one thread, which makes all calls.

    The constructor loads the model; it raises ConfigError, ModelError or BackendError.
    """

    def __init__(self, config: EngineConfig, executor: Executor | None = None) -> None:
        self.config = config
        self.executor = executor or make_executor(config)
        # The blocks that the tokens of all plans in flight attend to are kept.
        max_chunk = config.scheduler.max_num_batched_tokens * self.executor.max_plans_in_flight
        kv = KVCacheManager(config.cache, max_chunk)
        compiler = GrammarCompiler(partial(vocabulary_source, config.model))
        self.structured_outputs = grammars = StructuredOutputManager(compiler)
        events = kv_events(config, kv)
        of_tiers = None if events is None else events.of_tiers
        store = open_store(config.kv_store, config.cache.block_bytes, of_tiers)
        self.scheduler = scheduler = Scheduler(
            config.scheduler,
            kv,
            config.model.max_positions,
            config.model.vocab_size,
            grammars.advance,
            grammars.look_ahead,
            *stored_kv(store, kv, self.executor),
        )
        every: list[Capability] = []
        self._pause = pause = EnginePause(scheduler, self.executor, every)
        every += [
            MemoryAhead(config, kv.pool, BlockWriter(self.executor)),
            *([] if store is None else [KVTransfers(scheduler, store)]),
            image_stage(config, self.executor, scheduler),
            *adapter_stages(config, self.executor, pause.check_weights),
            Grammars(grammars, scheduler),
            *([] if events is None else [events]),
            BlockReports(kv),
        ]
        self._capabilities = Capabilities(every, scheduler)
        # Their threads hold no reference to the core, so dropping the core ends them.
        weakref.finalize(self, self._capabilities.run, "abandon").atexit = False
        self._profiler = profiler = EngineProfiler(
            config.observability.profiler, partial(record_ranks, self.executor)
        )
        self.commands: dict[str, Callable[..., Any]] = {
            "block_map": partial(block_map, kv),
            "is_busy": partial(_is_busy, pause, scheduler),
            "reset_prefix_cache": partial(reset_prefix_cache, scheduler, store),
            "collective_rpc": partial(collective_rpc, self.executor, pause),
            "start_profile": profiler.start,
            "stop_profile": profiler.stop,
            **pause.commands,
            **self._capabilities.commands,
        }
        """Commands that a front end may call by name between two steps, in any host. They hold no
        reference to the core, so that it is freed as soon as it is dropped."""
        self._submitted: deque[_SubmittedPlan] = deque()
        self._collected_at = 0.0
        self._step_s = 0.0
        """Duration of the last plan, in seconds."""
        self._is_idle = False
        """Whether the last step had nothing to compute and no request has arrived since."""

    def step(self) -> EngineCoreOutputs:
        """Submits as many plans as the executor accepts, and processes the oldest result. A failure
        of the backend ends only the requests of that step.

        Raises EngineDeadError if the workers compute no more, and IntegrityError if the engine's
        state is inconsistent; the engine is unusable then.
        """
        profiler = self._profiler
        return self._step() if profiler.session is None else profiler.run(self._step)

    def _step(self) -> EngineCoreOutputs:
        scheduler, executor, submitted = self.scheduler, self.executor, self._submitted
        capabilities = self._capabilities
        late: list[EngineCoreOutput] = []
        if executor.has_new_weights and not scheduler.in_flight:
            self._pause.take_new_weights()
        if not self._pause.is_frozen:
            late = capabilities.advance(is_idle=self._is_idle)
        self._submit_plans()
        self._is_idle = not submitted
        outputs = self._collect(submitted.popleft()) if submitted else scheduler.snapshot()
        outputs.outputs[:0] = late
        capabilities.follow(outputs, self._step_s)
        capabilities.release_ended()
        if outputs.stats is not None:
            capabilities.report(outputs.stats)
        if not scheduler.has_unfinished_requests() and scheduler.kv.pool.num_held:
            raise IntegrityError("the engine is idle and KV blocks are still held")
        if executor.max_plans_in_flight > 1:  # so that no stage waits while outputs are sent
            self._submit_plans()
        return outputs

    def _submit_plans(self) -> None:
        """Submits as many plans as the executor accepts."""
        scheduler, executor, submitted = self.scheduler, self.executor, self._submitted
        may_plan = not (self._pause.is_frozen or executor.has_new_weights)
        while may_plan and len(submitted) < executor.max_plans_in_flight:
            plan = scheduler.schedule()
            if not plan.request_ids:
                break
            self._capabilities.complete(plan)
            submitted.append(_SubmittedPlan(plan, time.perf_counter()))
            try:
                executor.submit(plan)
            except Exception as error:  # handled when this plan is collected, after earlier plans
                submitted[-1].error = error

    def _collect(self, submitted: _SubmittedPlan) -> EngineCoreOutputs:
        scheduler, plan = self.scheduler, submitted.plan
        try:
            if submitted.error is not None:
                raise submitted.error
            result = self.executor.collect()
        except DeviceError as error:
            scheduler.drop(plan)
            raise EngineDeadError(str(error)) from error
        except BackendError as error:
            logger.exception("a step of %d requests failed", len(plan.request_ids))
            return scheduler.fail(plan, f"the step failed: {error}")
        except BaseException:  # such as KeyboardInterrupt: the engine may continue
            scheduler.drop(plan)
            raise
        # A plan begins when the previous one is done.
        began_at = max(submitted.at, self._collected_at, self.executor.began_at)
        self._collected_at = time.perf_counter()
        self._step_s = self._collected_at - began_at
        scheduler.observe(plan, self._step_s)
        self._capabilities.run("observe", plan, self._step_s)
        if self._profiler.session is not None:
            self._profiler.computed(plan, began_at, self._collected_at)
        return scheduler.update(plan, result)

    def use_idle_time(self) -> bool:
        """Prepares memory of blocks and loads for the next requests, for some milliseconds. Returns
        False if there is nothing left to prepare. Raises EngineDeadError if the workers have
        ended."""
        if (cause := self.executor.failure()) is not None:
            raise EngineDeadError(cause)
        hooks = self._capabilities.hooks("use_idle_time")
        return not self._pause.is_on and any(hook() for hook in hooks)

    def has_idle_work(self) -> bool:
        """Whether `use_idle_time` would do anything."""
        hooks = self._capabilities.hooks("has_idle_work")
        return not self._pause.is_on and any(hook() for hook in hooks)

    def add_request(self, request: EngineCoreRequest) -> None:
        """Queues a request, or lets it wait for what it needs. Raises RequestError if it could
        never run."""
        self._is_idle = False
        self._capabilities.add(request)

    def abort_requests(self, request_ids: list[str]) -> None:
        """Ends requests without further output; unknown and finished ids are ignored."""
        for request_id in request_ids:
            self.scheduler.abort_request(request_id)
        self._capabilities.run("abort", request_ids)
        self._capabilities.release_ended()

    def has_unfinished_requests(self) -> bool:
        """Whether a step is needed: requests may run, or plans are to be collected."""
        is_awaited = self._capabilities.num_waiting > 0 and not self._pause.is_on
        return _is_busy(self._pause, self.scheduler) or is_awaited

    def waiting(self) -> EngineCoreOutputs | None:
        """Statistics of requests that wait although no step is needed; None: there are none."""
        if not (self.scheduler.states.by_id or self._capabilities.num_waiting):
            return None
        outputs = self.scheduler.snapshot()
        if outputs.stats is not None:
            self._capabilities.report(outputs.stats)
        return outputs

    def progress(self) -> int | None:
        """A number that changes while a step advances; None if it is not counted. Any thread."""
        return self.executor.progress()

    def shutdown(self) -> None:
        """Frees the model. Idempotent."""
        self._capabilities.run("shutdown")
        self.executor.shutdown()


def _is_busy(pause: EnginePause, scheduler: Scheduler) -> bool:
    """Whether a step is needed: requests may run, or plans are to be collected."""
    return bool(scheduler.in_flight) if pause.is_frozen else scheduler.has_unfinished_requests()
