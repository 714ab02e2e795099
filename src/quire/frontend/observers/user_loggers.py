"""`UserLoggers`: reports request events to the user's loggers, in vLLM's form.

An observer of the output processor, used if the user provides loggers. They are called on the front
end's thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from quire.config.records import EngineConfig
from quire.errors import ConfigError, quoted
from quire.frontend.completion_state import CompletionState
from quire.frontend.observers.observer import RequestObserver, StepTokens
from quire.frontend.observers.user_stats import (
    AggregateStatLoggerBase,
    FinishedRequestStats,
    IterationStats,
    PrefixCacheStats,
    SchedulerStats,
)
from quire.frontend.request_record import RequestRecord
from quire.log import get_logger
from quire.protocol import SchedulerStats as EngineStats
from quire.system.deferred_signals import raise_ctrl_c

logger = get_logger(__name__)


class UserLoggers(RequestObserver):
    """All user loggers of one engine. Used by one thread.

    If a logger raises, the exception is logged and the logger is disabled; requests are unaffected.
    """

    def __init__(self, config: EngineConfig, factories: Sequence[Callable[..., Any]]) -> None:
        """Create the loggers; the engine is ready. Raises ConfigError for an invalid factory, and
        any exception of a factory."""
        if not isinstance(factories, Sequence) or not all(map(callable, factories)):
            raise ConfigError(
                "stat_loggers must be a list of subclasses of StatLoggerBase, or of functions that "
                f"make one, got {quoted(factories)}"
            )
        self._loggers = [_made(factory, config) for factory in factories]
        self._interval_s = config.observability.stats_interval_s
        self._last_log_s = time.monotonic()
        self._iteration = IterationStats()
        """Events of the current step."""
        self._call("log_engine_initialized")

    def on_first_token(self, record: RequestRecord, completion: CompletionState) -> None:
        iteration, num_cached = self._iteration, completion.num_cached_tokens
        iteration.time_to_first_tokens_iter.append(completion.stats.first_token_latency)
        if record.num_with_tokens > 1:
            return
        prompt = iteration.prompt_token_stats
        prompt.total += record.num_prompt_tokens
        prompt.computed += record.num_prompt_tokens - num_cached
        prompt.local_cache_hit += num_cached
        prompt.cached_tokens += num_cached

    def on_finished(self, record: RequestRecord, completion: CompletionState, now: float) -> None:
        iteration = self._iteration
        iteration.finished_requests.append(_finished(record, completion, now))
        if not record.num_open:
            counts = [one.stats.num_generation_tokens for one in record.completions]
            iteration.max_num_generation_tokens_iter.append(max(counts))
            iteration.n_params_iter.append(record.num_core_requests)

    def on_step(self, tokens: StepTokens, stats: EngineStats | None, now: float) -> None:
        iteration, self._iteration = self._iteration, IterationStats()
        iteration.iteration_timestamp = now
        iteration.num_generation_tokens = tokens.num_new
        iteration.inter_token_latencies_iter = tokens.gaps_s
        scheduler = None
        if stats is not None:
            iteration.num_preempted_reqs = stats.num_preemptions
            scheduler = SchedulerStats(
                stats.num_running,
                stats.num_waiting,
                stats.kv_cache_usage,
                PrefixCacheStats(stats.num_prefix_queried_tokens, stats.num_prefix_hit_tokens),
            )
        self._call("record", scheduler, iteration, mm_cache_stats=None, engine_idx=0)
        self.log_when_due()

    def on_rejected(self, reason: str) -> None:
        self._call("record_admission_rejection", reason, needs=AggregateStatLoggerBase)

    def on_sleep(self, level: int | None) -> None:
        self._call("record_sleep_state", int(level is not None), level or 0)

    def log_when_due(self) -> None:
        if time.monotonic() - self._last_log_s >= self._interval_s:
            self.log()

    def log(self) -> None:
        self._last_log_s = time.monotonic()
        self._call("log")

    def _call(self, method: str, *args: Any, needs: type = object, **kwargs: Any) -> None:
        for one in list(self._loggers):
            if not isinstance(one, needs):
                continue
            try:
                getattr(one, method)(*args, **kwargs)
            except BaseException as error:
                raise_ctrl_c(error)
                name = type(one).__name__
                logger.exception("the stat logger %s failed and is not called again", name)
                self._loggers.remove(one)


def _made(factory: Callable[..., Any], config: EngineConfig) -> Any:
    is_class = isinstance(factory, type)
    if is_class and issubclass(factory, AggregateStatLoggerBase):  # type: ignore[arg-type]
        return factory(vllm_config=config, engine_indexes=[0])
    return factory(config, 0)


def _finished(
    record: RequestRecord, completion: CompletionState, now: float
) -> FinishedRequestStats:
    stats = completion.stats
    found = FinishedRequestStats(
        finish_reason=completion.finish_reason or "",
        request_id=record.input.request_id,
        e2e_latency=now - stats.arrival_time,
        num_prompt_tokens=record.num_prompt_tokens,
        num_preemptions=stats.num_preemptions,
        num_generation_tokens=stats.num_generation_tokens,
        max_tokens_param=record.input.params.max_tokens,
        num_cached_tokens=completion.num_cached_tokens,
    )
    if stats.num_generation_tokens:
        found.queued_time = stats.scheduled_ts - stats.queued_ts
        found.prefill_time = stats.first_token_ts - stats.scheduled_ts
        found.decode_time = stats.last_token_ts - stats.first_token_ts
        found.inference_time = stats.last_token_ts - stats.scheduled_ts
        num_gaps = stats.num_generation_tokens - 1
        found.mean_time_per_output_token = found.decode_time / num_gaps if num_gaps else 0.0
    return found
