"""The metrics of an engine, under vLLM's names; `LoggingStatLogger`: a line of statistics every ten
seconds, in vLLM's format.

Both observe the output processor; `/metrics` and the live view read the metrics. Everything runs on
the front end's thread, so no locks are needed.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Sequence
from itertools import repeat
from typing import TYPE_CHECKING

from quire.config import EngineConfig
from quire.frontend.completion_state import CompletionState
from quire.frontend.observers.observer import RequestObserver, StepTokens
from quire.frontend.request_record import RequestRecord
from quire.log import get_logger
from quire.metrics.engine_series import EngineSeries
from quire.metrics.series import Counter as Series
from quire.protocol import SchedulerStats, SpeculationStats

if TYPE_CHECKING:
    from quire.frontend.observers.user_stats import StatLoggerFactory


_WINDOW = 256
"""Number of recent requests and gaps that the live view's percentiles cover."""

_SOURCES = {"queue": "host", "memory": "host", "disk": "disk"}
"""vLLM's names for the locations of the KV store's tiers."""
_IDLE = SchedulerStats(num_running=0, num_waiting=0, kv_cache_usage=0.0)


class EngineMetrics(RequestObserver):
    """Counters of one engine, and recent values for the live view.

    Invariants: `generation_tokens` is the number of tokens that requests received, and
    `prompt_tokens` the number of prompt tokens of all requests that received any. A prompt counts
    once for all of its `n` outputs, as in the usage of a reply; so do its cached tokens, in all
    series named `prompt_tokens`. `prefix_cache_queries`, `prefix_cache_hits` and the histograms
    count each of the `n` outputs.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.series = EngineSeries(config)
        self.latest = _IDLE
        self.recent_ttft_s: deque[float] = deque(maxlen=_WINDOW)
        self.recent_itl_s: deque[float] = deque(maxlen=_WINDOW)
        self.num_in_flight = 0
        """Core requests that were passed to the core and have not ended."""
        self._num_prompt_tokens = 0
        """Prompt tokens that the current step computed."""

    def on_handed_over(self, record: RequestRecord) -> None:
        self.num_in_flight += record.num_core_requests
        lora = record.input.options.lora
        if lora is not None and self.series.lora is not None:
            self.series.lora.waits(lora.lora_name, record.num_core_requests)

    def on_first_token(self, record: RequestRecord, completion: CompletionState) -> None:
        series, num_cached = self.series, completion.num_cached_tokens
        lora = record.input.options.lora
        if lora is not None and series.lora is not None:
            series.lora.runs(lora.lora_name)
        ttft_s = max(0.0, completion.stats.first_token_latency)
        series.time_to_first_token.observe(ttft_s)
        self.recent_ttft_s.append(ttft_s)
        num_computed = record.num_prompt_tokens - num_cached
        self._num_prompt_tokens += num_computed
        if record.num_with_tokens > 1:
            return  # the prompt counts once for several completions
        series.prompt_tokens.inc(record.num_prompt_tokens)
        series.prompt_tokens_cached.inc(num_cached)
        series.prompt_tokens_by_source.of("local_compute").inc(num_computed)
        series.prompt_tokens_by_source.of("local_cache_hit").inc(num_cached)
        by_source = series.prompt_tokens_cached_by_source
        for tier, num_loaded in completion.loaded_tokens.items():
            by_source.of(_SOURCES.get(tier, "external_unspecified")).inc(num_loaded)
        by_source.of("device").inc(num_cached - sum(completion.loaded_tokens.values()))

    def on_finished(self, record: RequestRecord, completion: CompletionState, now: float) -> None:
        series, stats = self.series, completion.stats
        series.request_success.of(completion.finish_reason or "").inc()
        series.e2e_request_latency.observe(max(0.0, now - stats.arrival_time))
        series.request_prompt_tokens.observe(record.num_prompt_tokens)
        series.request_generation_tokens.observe(stats.num_generation_tokens)
        series.request_params_max_tokens.observe(record.input.params.max_tokens or 0)
        series.request_num_preemptions.observe(stats.num_preemptions)
        if stats.first_token_ts:
            self._observe_phases(record, completion)
        lora = record.input.options.lora
        if lora is not None and series.lora is not None:
            has_tokens = bool(stats.first_token_ts)
            series.lora.ends(lora.lora_name, has_tokens=has_tokens)
        self.num_in_flight -= 1
        if not self.num_in_flight:
            self._show(_IDLE)
        if not record.num_open:
            most = max(one.stats.num_generation_tokens for one in record.completions)
            series.request_params_n.observe(record.num_core_requests)
            series.request_max_num_generation_tokens.observe(most)

    def on_step(self, tokens: StepTokens, stats: SchedulerStats | None, now: float) -> None:
        del now
        # Requests that received tokens in the same earlier step have the same gap.
        for gap_s, times in Counter(tokens.gaps_s).items():
            self.series.inter_token_latency.observe(max(0.0, gap_s), times)
            self.recent_itl_s.extend(repeat(max(0.0, gap_s), times))
        self.series.generation_tokens.inc(tokens.num_new)
        num_tokens = self._num_prompt_tokens + tokens.num_new
        self._num_prompt_tokens = 0
        if num_tokens:
            self.series.iteration_tokens.observe(num_tokens)
        if stats is not None:
            self._on_stats(stats)

    def on_rejected(self, reason: str) -> None:
        self.series.admission_rejections.of(reason).inc()

    def on_sleep(self, level: int | None) -> None:
        state = self.series.engine_sleep_state
        state.of("awake").set(int(level is None))
        state.of("weights_offloaded").set(int(level == 1))
        state.of("discard_all").set(int(level == 2))

    def _observe_phases(self, record: RequestRecord, completion: CompletionState) -> None:
        series, stats = self.series, completion.stats
        decode_s = stats.last_token_ts - stats.first_token_ts
        series.request_queue_time.observe(max(0.0, stats.scheduled_ts - stats.arrival_time))
        series.request_prefill_time.observe(max(0.0, stats.first_token_ts - stats.scheduled_ts))
        series.request_decode_time.observe(max(0.0, decode_s))
        series.request_inference_time.observe(max(0.0, stats.last_token_ts - stats.scheduled_ts))
        series.request_prefill_kv_computed_tokens.observe(
            record.num_prompt_tokens - completion.num_cached_tokens
        )
        num_gaps = stats.num_generation_tokens - 1
        if num_gaps > 0:
            series.request_time_per_output_token.observe(decode_s / num_gaps)

    def _count_drafts(self, stats: SpeculationStats) -> None:
        series = self.series
        series.num_drafts.inc(stats.num_drafts)
        series.num_draft_tokens.inc(stats.num_draft_tokens)
        series.num_accepted_tokens.inc(stats.num_accepted_tokens)
        for position, count in enumerate(stats.accepted_by_position):
            counters = series.accepted_by_position.series
            counters.setdefault((str(position),), Series()).inc(count)

    def _on_stats(self, stats: SchedulerStats) -> None:
        series = self.series
        series.prefix_cache_queries.inc(stats.num_prefix_queried_tokens)
        series.prefix_cache_hits.inc(stats.num_prefix_hit_tokens)
        if stats.kv_store is not None and series.kv_store is not None:
            series.kv_store.show(stats.kv_store.sums, stats.kv_store.usage)
        if stats.mm_cache is not None and series.images is not None:
            series.images.show(*stats.mm_cache)
        series.num_preemptions.inc(stats.num_preemptions)
        if stats.speculation is not None:
            self._count_drafts(stats.speculation)
        # A step that was running when the last request was aborted still counts that request, and
        # no later step would correct the gauges.
        self._show(stats if self.num_in_flight else _IDLE)

    def _show(self, stats: SchedulerStats) -> None:
        self.latest = stats
        series = self.series
        series.num_requests_running.set(stats.num_running)
        series.num_requests_waiting.set(stats.num_waiting)
        series.num_requests_waiting_by_reason.of("capacity").set(stats.num_waiting)
        series.kv_cache_usage_perc.set(stats.kv_cache_usage)


logger = get_logger(__name__)


def statistics_observers(
    config: EngineConfig, stat_loggers: Sequence[StatLoggerFactory]
) -> list[RequestObserver]:
    """The logger of the statistics line, if enabled, and the user's loggers. Raises ConfigError."""
    found: list[RequestObserver] = []
    if config.observability.log_stats:
        found.append(LoggingStatLogger(config))
    if stat_loggers:
        from quire.frontend.observers.user_loggers import UserLoggers

        found.append(UserLoggers(config, stat_loggers))
    return found


class LoggingStatLogger(RequestObserver):
    """Counts since the last line, and the newest scheduler statistics. Used by one thread."""

    def __init__(self, config: EngineConfig) -> None:
        self._interval_s = config.observability.stats_interval_s
        self._last_log_s = time.monotonic()
        self._num_prompt_tokens = 0
        """Computed prompt tokens (without cache hits) of requests that received their first
        token."""
        self._num_generation_tokens = 0
        self._num_preemptions = 0
        self._num_queried_tokens = 0
        self._num_hit_tokens = 0
        self._num_draft_tokens = 0
        self._num_accepted_tokens = 0
        self._was_idle = False
        self._stats = SchedulerStats(num_running=0, num_waiting=0, kv_cache_usage=0.0)

    def on_first_token(self, record: RequestRecord, completion: CompletionState) -> None:
        self._num_prompt_tokens += record.num_prompt_tokens - completion.num_cached_tokens

    def on_step(self, tokens: StepTokens, stats: SchedulerStats | None, now: float) -> None:
        del now
        self._num_generation_tokens += tokens.num_new
        if stats is not None:
            self._stats = stats
            self._num_preemptions += stats.num_preemptions
            self._num_queried_tokens += stats.num_prefix_queried_tokens
            self._num_hit_tokens += stats.num_prefix_hit_tokens
            if stats.speculation is not None:
                self._num_draft_tokens += stats.speculation.num_draft_tokens
                self._num_accepted_tokens += stats.speculation.num_accepted_tokens
        self.log_when_due()

    def log_when_due(self) -> None:
        if time.monotonic() - self._last_log_s >= self._interval_s:
            self.log()

    def log(self) -> None:
        """Log now; at level DEBUG if the engine was idle for this line and the one before."""
        now = time.monotonic()
        elapsed = max(now - self._last_log_s, 1e-9)
        prompt_rate = self._num_prompt_tokens / elapsed
        generation_rate = self._num_generation_tokens / elapsed
        is_idle = not (self._num_prompt_tokens or self._num_generation_tokens)
        parts = [
            f"Avg prompt throughput: {prompt_rate:.1f} tokens/s",
            f"Avg generation throughput: {generation_rate:.1f} tokens/s",
            f"Running: {self._stats.num_running} reqs",
            f"Waiting: {self._stats.num_waiting} reqs",
        ]
        if self._num_preemptions:
            parts.append(f"Preemptions: {self._num_preemptions}")
        parts.append(f"CPU KV cache usage: {self._stats.kv_cache_usage * 100:.1f}%")
        if self._num_queried_tokens:
            rate = self._num_hit_tokens / self._num_queried_tokens
            parts.append(f"Prefix cache hit rate: {rate * 100:.1f}%")
        if self._num_draft_tokens:
            rate = self._num_accepted_tokens / self._num_draft_tokens
            parts.append(f"Draft acceptance rate: {rate * 100:.1f}%")
        level = logger.debug if is_idle and self._was_idle else logger.info
        level("Engine 000: %s", ", ".join(parts))
        self._was_idle = is_idle
        self._last_log_s = now
        self._num_prompt_tokens = self._num_generation_tokens = self._num_preemptions = 0
        self._num_draft_tokens = self._num_accepted_tokens = 0
