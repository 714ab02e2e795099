"""`EngineCore`: plans, executes and collects steps, and runs commands between steps.

Driven by `LLMEngine`, or by an `EngineLoop` on its own thread or in its own process. Knows only
token ids: the front end handles text.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from quire import env
from quire.config.records import EngineConfig
from quire.core.adapters.stages import AdapterStages, adapter_commands
from quire.core.admission import Admission, Stage, refusal_of
from quire.core.event_publisher import EventPublisher
from quire.core.images.encoder import image_manager
from quire.core.images.manager import ImageManager
from quire.core.kv_transfers import BlockReader, BlockWriter, KVTransfers
from quire.core.memory_ahead import MemoryAhead
from quire.core.pausing import EnginePause
from quire.core.profiling.engine_profiler import EngineProfiler
from quire.errors import (
    BackendError,
    ConfigError,
    EngineDeadError,
    IntegrityError,
    RequestError,
)
from quire.executor.base import Executor
from quire.executor.factory import make_executor
from quire.kvcache import BlockEvents, KVCacheManager
from quire.kvcache.block_map import block_map
from quire.kvstore.opening import open_store
from quire.kvstore.store import KVStore
from quire.kvstore.tiers.events import TierEvents
from quire.log import get_logger
from quire.protocol import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest, SchedulePlan
from quire.reasoning.passage import ReasoningPassage
from quire.scheduler import Scheduler
from quire.scheduler.stored_kv.commands import StoreCommands
from quire.scheduler.stored_kv.loads import PrefixLoads
from quire.scheduler.stored_kv.saves import ChunkSaves
from quire.structured.compile import GrammarCompiler
from quire.structured.manager import StructuredOutputManager
from quire.tokenizer.for_model import vocabulary_source

if TYPE_CHECKING:
    from quire.core.event_publisher import EventPublisher

logger = get_logger(__name__)


_ENGINES_OWN = frozenset(
    {
        "call",
        "begin_tile",
        "close",
        "drop_adapter",
        "encode_tile",
        "drop_prompt_adapter",
        "load_adapter",
        "load_prompt_adapter",
        "step",
        "release_memory",
        "restore_memory",
        "take_new_weights",
        "write_blocks",
    }
)
"""Worker methods that only the engine may call. Called by `collective_rpc`, they would damage
running requests."""
_IDLE_WAIT_S = 0.01
"""Seconds that a step waits for a grammar or an adapter if there is nothing else to do."""
_SHARE_FOR_MASKS = 0.02
"""Share of a step's time that the next step may wait for masks."""
_SHARE_FOR_ENCODER = 0.3
"""Share of the time of a step without prompts that the encoder of images has between two steps."""
_ENCODER_ALONE_S = 0.1
"""Seconds that the encoder has if no request waits for its next token."""


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
        self.structured_outputs = StructuredOutputManager(compiler)
        self._publisher, tier_events = _publisher(config, kv)
        store = open_store(config.kv_store, config.cache.block_bytes, tier_events)
        self.scheduler = Scheduler(
            config.scheduler,
            kv,
            config.model.max_model_len,
            config.model.vocab_size,
            self.structured_outputs.advance,
            self.structured_outputs.look_ahead,
            None if store is None else ChunkSaves(kv, store, BlockReader(self.executor)),
            None
            if store is None or not store.is_read
            else PrefixLoads(kv, store, BlockWriter(self.executor)),
        )
        self._transfers = (
            None if store is None else KVTransfers(self.scheduler, self.executor, store)
        )
        # Their threads hold no reference to the core, so dropping the core ends them.
        weakref.finalize(self, _abandon, store, self._publisher).atexit = False
        self._memory_ahead = MemoryAhead(config, kv.pool, BlockWriter(self.executor))
        images = image_manager(config, self.executor)
        adapters = AdapterStages.of(config, self.executor)
        stages: list[Stage] = [one for one in (images, *adapters) if one is not None]
        self._admission = admission = Admission(stages)
        self._pause = pause = EnginePause(
            self.scheduler,
            self.executor,
            admission.settle,
            partial(_forget, self._memory_ahead, admission),
        )
        self._profiler = profiler = EngineProfiler(
            config.observability.profiler, partial(_record_ranks, self.executor)
        )
        self.commands: dict[str, Callable[..., Any]] = {
            "block_map": partial(block_map, kv),
            "reset_prefix_cache": partial(_reset_prefix_cache, self.scheduler, store),
            "prepare_grammars": self.structured_outputs.prepare,
            "collective_rpc": partial(_collective_rpc, self.executor, pause),
            "is_busy": pause.is_busy,
            "pause": pause.pause,
            "resume": pause.resume,
            "is_paused": pause.is_paused,
            "sleep": pause.sleep,
            "wake_up": pause.wake_up,
            "is_sleeping": pause.is_sleeping,
            "release_kv_cache_memory": pause.release_kv_cache_memory,
            "start_profile": profiler.start,
            "stop_profile": profiler.stop,
            "reset_encoder_cache": partial(_reset_encoder_cache, images),
            **adapter_commands(adapters, pause.check_weights),
        }
        if store is not None:
            of_store = StoreCommands(kv, store)
            self.commands |= {
                "kv_store_usage": store.stats,
                "kv_store_stats": partial(_kv_store_stats, store),
                "kv_store_flush": store.flush,
                "kv_store_clear": of_store.clear,
                "kv_store_pin": of_store.pin,
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

        Raises IntegrityError if the engine's state is inconsistent; the engine is unusable then.
        """
        return self._profiler.run(self._step)

    def _step(self) -> EngineCoreOutputs:
        scheduler, executor, submitted = self.scheduler, self.executor, self._submitted
        if executor.has_new_weights and not scheduler.in_flight:
            self._pause.take_new_weights()
        if self._transfers is not None and not self._pause.is_frozen:
            self._transfers.advance(may_wait=self._is_idle)
        late: list[EngineCoreOutput] = []
        if self._admission.is_active and not self._pause.is_sleeping():
            late = self._admit()
        if self.structured_outputs.num_requests:
            late += self._take_grammar_news(_IDLE_WAIT_S if self._is_idle else 0.0)
        self._submit_plans()
        self._is_idle = not submitted
        outputs = self._collect(submitted.popleft()) if submitted else scheduler.snapshot()
        outputs.outputs[:0] = late
        if self._transfers is not None and outputs.stats is not None:
            is_last = not scheduler.has_unfinished_requests()
            outputs.stats.kv_store = self._transfers.take_stats(is_last=is_last)
        if self.structured_outputs.num_requests:
            self._follow_grammars(outputs)
        self._admission.release_ended(scheduler.states.by_id)
        if outputs.stats is not None:
            self._admission.report(outputs.stats)
        self._flush_events()
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
            if plan.structured_output_request_ids:
                masks = self.structured_outputs.masks(
                    plan.structured_output_request_ids, plan.draft_token_ids
                )
                plan.structured_output_request_ids = [*masks]
                plan.grammar_bitmask = [*masks.values()]
            submitted.append(_SubmittedPlan(plan, time.perf_counter()))
            try:
                executor.submit(plan)
            except Exception as error:  # handled when this plan is collected, after earlier plans
                submitted[-1].error = error

    def _admit(self) -> list[EngineCoreOutput]:
        """Queues the requests that have all that they need. Returns outputs of requests that
        failed."""
        scheduler, compute_s, wait_s = self.scheduler, _ENCODER_ALONE_S, 0.0
        if any(one.is_generating for one in scheduler.states.running):
            compute_s = _SHARE_FOR_ENCODER * scheduler.pacing.costs.generating_s
        if self._is_idle and not scheduler.has_unfinished_requests():
            wait_s = _IDLE_WAIT_S
        passed = self._admission.advance(compute_s, wait_s)
        for request in passed.ready:
            try:
                self._queue(request)
            except RequestError as error:
                passed.failed.append(refusal_of(request, str(error)))
        return passed.failed

    def _take_grammar_news(self, timeout_s: float) -> list[EngineCoreOutput]:
        """Lets requests start or continue if their grammars or masks are ready; ends requests whose
        grammars failed. Waits up to `timeout_s` for the first. Returns outputs."""
        scheduler, outputs = self.scheduler, list[EngineCoreOutput]()
        for news in self.structured_outputs.take_news(timeout_s):
            if news.error is None:
                scheduler.grammar_is_ready(news.request_id)
            else:
                unmet = news.is_unmet
                outputs.append(
                    scheduler.end_with_error(news.request_id, news.error, is_unmet=unmet)
                )
        return outputs

    def _follow_grammars(self, outputs: EngineCoreOutputs) -> None:
        """Computes the masks that follow the tokens of a step. Masks that would delay other
        requests too much are completed in a later step."""
        grammars = self.structured_outputs
        has_others = len(self.scheduler.states.by_id) > grammars.num_requests
        grammars.run_masks(_SHARE_FOR_MASKS * self._step_s, has_others=has_others)
        news = self._take_grammar_news(0.0)
        if news:
            outputs.outputs += news
            if outputs.stats is not None:
                self.scheduler.states.recount(outputs.stats)
        for output in outputs.outputs:
            if output.finish_reason is not None:
                self.structured_outputs.forget(output.request_id)

    def _collect(self, submitted: _SubmittedPlan) -> EngineCoreOutputs:
        scheduler, plan = self.scheduler, submitted.plan
        try:
            if submitted.error is not None:
                raise submitted.error
            result = self.executor.collect()
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
        if self._transfers is not None:
            self._transfers.observe(plan, self._step_s)
        self._profiler.computed(plan, began_at, self._collected_at)
        return scheduler.update(plan, result)

    def use_idle_time(self) -> bool:
        """Prepares memory of blocks and loads for the next requests, for some milliseconds. Returns
        False if there is nothing left to prepare. Raises EngineDeadError if the workers have
        ended."""
        if (cause := self.executor.failure()) is not None:
            raise EngineDeadError(cause)
        if self._pause.is_sleeping():
            return False
        transfers = self._transfers
        return self._memory_ahead.advance() or (transfers is not None and transfers.prepare())

    def has_idle_work(self) -> bool:
        """Whether `use_idle_time` would do anything."""
        if self._pause.is_sleeping():
            return False
        transfers = self._transfers
        is_prepared = transfers is None or transfers.is_prepared
        return not is_prepared or self._memory_ahead.is_wanted()

    def add_request(self, request: EngineCoreRequest) -> None:
        """Queues a request, or lets it wait for what it needs. Raises RequestError if it could
        never run."""
        self._is_idle = False
        if request.images and self.config.model.images is None:
            raise RequestError("this engine takes no images and no audio")
        if not self._admission.add(request):
            self._queue(request)

    def _queue(self, request: EngineCoreRequest) -> None:
        self.scheduler.add_request(request)
        params = request.sampling_params
        if params.structured_outputs is not None:
            self.structured_outputs.add(
                request.request_id,
                params.structured_outputs,
                tenant=request.scope.tenant,
                ignore_eos=params.ignore_eos,
                passage=self._passage(request),
                begun=_begun(request),
            )

    def _passage(self, request: EngineCoreRequest) -> ReasoningPassage | None:
        """The reasoning passage after which the request's grammar begins; None: it begins at
        once."""
        marks, prompt = request.reasoning, request.prompt_token_ids
        if marks is None or marks.is_in_grammar:
            return None
        end = len(prompt) - request.num_reply_tokens
        return ReasoningPassage(marks, prompt[:end], end)

    def abort_requests(self, request_ids: list[str]) -> None:
        """Ends requests without further output; unknown and finished ids are ignored."""
        for request_id in request_ids:
            self.scheduler.abort_request(request_id)
            self.structured_outputs.forget(request_id)
            self._admission.abort(request_id)
        self._admission.release_ended(self.scheduler.states.by_id)
        self._flush_events()

    def has_unfinished_requests(self) -> bool:
        """Whether a step is needed: requests may run, or plans are to be collected."""
        is_awaited = self._admission.num_waiting > 0 and not self._pause.is_sleeping()
        return self._pause.is_busy() or is_awaited

    def waiting(self) -> EngineCoreOutputs | None:
        """Statistics of requests that wait although no step is needed; None: there are none."""
        if not (self.scheduler.states.by_id or self._admission.num_waiting):
            return None
        outputs = self.scheduler.snapshot()
        if outputs.stats is not None:
            self._admission.report(outputs.stats)
        return outputs

    def progress(self) -> int | None:
        """A number that changes while a step advances; None if it is not counted. Any thread."""
        return self.executor.progress()

    def shutdown(self) -> None:
        """Frees the model. Idempotent."""
        self.structured_outputs.shutdown()
        if self._transfers is not None:
            self._transfers.close()
        if self._publisher is not None:
            self._publisher.close()
        self._admission.shutdown()
        self.executor.shutdown()

    def _flush_events(self) -> None:
        events = self.scheduler.kv.pool.events
        if events is not None:
            events.flush()


def _reset_encoder_cache(images: ImageManager | None) -> None:
    """Drops the rows of pictures that are kept; None: the engine has no encoder."""
    if images is not None:
        images.cache.clear()


def _forget(memory: MemoryAhead, admission: Admission) -> None:
    """Memory of the workers was released, or the weights are new."""
    memory.forget()
    admission.forget()


def _reset_prefix_cache(
    scheduler: Scheduler,
    store: KVStore | None,
    reset_running_requests: bool = False,
    reset_connector: bool = False,
) -> bool:
    """`Scheduler.reset_prefix_cache`. `reset_connector`: the KV store drops its chunks too. Returns
    False, as in vLLM, also if there is no KV store to reset."""
    is_done = scheduler.reset_prefix_cache(reset_running_requests)
    if reset_connector and store is not None:
        store.clear()
    return is_done and not (reset_connector and store is None)


def _kv_store_stats(store: KVStore) -> dict[str, Any]:
    """Current `KVStoreStats`, as plain values."""
    return {"sums": store.counts.as_dict(), "usage": store.usage()}


def _abandon(store: KVStore | None, publisher: EventPublisher | None) -> None:
    """Ends the threads of a core that was dropped without `shutdown`."""
    if store is not None:
        store.abandon()
    if publisher is not None:
        publisher.abandon()


def _publisher(
    config: EngineConfig, kv: KVCacheManager
) -> tuple[EventPublisher | None, TierEvents | None]:
    """The publisher of KV events, and the object by which tiers of the KV store report events; None
    if KV events are off."""
    if config.kv_events is None:
        return None, None
    publisher = EventPublisher(config.kv_events, config.parallel.data_parallel_rank)
    as_int = env.kv_events_have_numbers()
    kv.pool.events = BlockEvents(kv.layout, kv.block_size, publisher.publish, as_int=as_int)
    return publisher, TierEvents(publisher.publish, as_int=as_int)


def _record_ranks(executor: Executor, is_on: bool) -> list[Any]:
    """Makes ranks record their steps, or end it; returns what they have recorded."""
    return [] if executor.num_ranks == 1 else executor.call("record_steps", is_on)


def _begun(request: EngineCoreRequest) -> list[int]:
    """The tokens at the end of the prompt that the grammar must accept first."""
    prompt = request.prompt_token_ids
    return prompt[len(prompt) - request.num_reply_tokens :]


def _collective_rpc(
    executor: Executor,
    pause: EnginePause,
    method: str | Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
) -> list[Any]:
    """Calls a method of the workers. Raises ConfigError for methods that only the engine may call.

    After `reload_weights` the new weights are loaded at once; after methods that set single
    weights, the next step loads them.
    """
    if isinstance(method, str) and method in _ENGINES_OWN:
        raise ConfigError(
            f"only the engine may call {method}; sleep and wake_up release and restore memory"
        )
    found = executor.call(method, *args, **(kwargs or {}))
    if method == "reload_weights":
        pause.take_new_weights()
    return found
