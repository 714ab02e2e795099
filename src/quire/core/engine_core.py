"""`EngineCore`: the loop's body. Three verbs a step, and a handful of calls between steps.

Driven by `LLMEngine`, or by an `EngineLoop` on its own thread or in its own process. Knows
token ids alone: text is the front end's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from quire.config.records import EngineConfig
from quire.errors import BackendError, IntegrityError
from quire.executor import Executor, UniProcExecutor
from quire.kvcache import KVCacheManager
from quire.kvcache.block_map import block_map
from quire.log import get_logger
from quire.protocol import EngineCoreOutputs, EngineCoreRequest
from quire.scheduler import Scheduler

logger = get_logger(__name__)


class EngineCore:
    """Scheduler and executor of one model. Owned by one thread, which makes all calls.

    Constructing one loads the model; raises ConfigError, ModelError or BackendError.
    """

    def __init__(self, config: EngineConfig, executor: Executor | None = None) -> None:
        self.config = config
        self.executor = executor or UniProcExecutor(config)
        kv = KVCacheManager(config.cache, config.scheduler.max_num_batched_tokens)
        self.scheduler = Scheduler(config.scheduler, kv, config.model.max_model_len)
        self.commands: dict[str, Callable[[], Any]] = {
            "block_map": partial(block_map, kv),
            "reset_prefix_cache": kv.reset_prefix_cache,
        }
        """What a front end may call by name between two steps, whichever host the core is in."""

    def step(self) -> EngineCoreOutputs:
        """One step; a failure of the backend ends the requests of this step and no others.

        Raises IntegrityError if the engine's own books are wrong; it is unusable then.
        """
        scheduler = self.scheduler
        plan = scheduler.schedule()
        begin = time.perf_counter()
        try:
            result = self.executor.execute(plan)
        except BackendError as error:
            logger.exception("a step of %d requests failed", len(plan.request_ids))
            outputs = scheduler.fail(plan, f"the step failed: {error}")
        else:
            scheduler.observe(plan, time.perf_counter() - begin)
            outputs = scheduler.update(plan, result)
        if not scheduler.has_unfinished_requests() and scheduler.kv.pool.num_held:
            raise IntegrityError("the engine is idle and KV blocks are still held")
        return outputs

    def add_request(self, request: EngineCoreRequest) -> None:
        """Queues a request. Raises RequestError if it cannot ever run."""
        self.scheduler.add_request(request)

    def abort_requests(self, request_ids: list[str]) -> None:
        """Ends requests; unknown and finished ids mean nothing. No output follows."""
        for request_id in request_ids:
            self.scheduler.abort_request(request_id)

    def has_unfinished_requests(self) -> bool:
        """Whether a step would do anything."""
        return self.scheduler.has_unfinished_requests()

    def progress(self) -> int | None:
        """A number that changes while a step advances; None if it is not counted. Any thread."""
        return self.executor.progress()

    def shutdown(self) -> None:
        """Frees the model. Idempotent."""
        self.executor.shutdown()
