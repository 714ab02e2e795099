"""What an engine counts about itself, under vLLM's names.

`AsyncLLM` (or any front end) reports requests, steps and aborts; whoever serves `/metrics` or
the live view reads. Everything happens on the front end's thread, so that nothing is locked.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from quire.config import EngineConfig
from quire.metrics.engine_series import FINISH_REASONS, EngineSeries
from quire.protocol import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest, SchedulerStats

_WINDOW = 256
"""Requests and gaps that the live view's percentiles look back on."""

_IDLE = SchedulerStats(num_running=0, num_waiting=0, kv_cache_usage=0.0)


@dataclass(slots=True)
class _Tracked:
    """What is remembered of one core request while it is in flight."""

    group: _Group
    max_tokens: int
    last_token_time: float = 0.0
    first_token_time: float = 0.0
    scheduled_time: float = 0.0
    num_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0


@dataclass(slots=True)
class _Group:
    """The core requests of one user's request: its prompt counts once."""

    arrival_time: float
    num_prompt_tokens: int
    n: int
    num_open: int
    is_prompt_counted: bool = False
    max_tokens_generated: int = 0


class EngineMetrics:
    """Counters of one engine, and the few recent values that the live view shows.

    Invariant: `generation_tokens` is the sum over requests of the tokens they were given, and
    `prompt_tokens` the sum of the prompts of all requests that were given any.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.series = EngineSeries(config)
        self.latest = _IDLE
        self.recent_ttft_s: deque[float] = deque(maxlen=_WINDOW)
        self.recent_itl_s: deque[float] = deque(maxlen=_WINDOW)
        self._tracked: dict[str, _Tracked] = {}

    @property
    def num_in_flight(self) -> int:
        """Core requests that have not ended."""
        return len(self._tracked)

    def on_added(self, requests: list[EngineCoreRequest]) -> None:
        """A user's request, as its `n` core requests, goes to the engine."""
        first = requests[0]
        group = _Group(
            first.arrival_time, len(first.prompt_token_ids), len(requests), len(requests)
        )
        for request in requests:
            max_tokens = request.sampling_params.max_tokens or 0
            self._tracked[request.request_id] = _Tracked(group, max_tokens)

    def on_outputs(self, outputs: EngineCoreOutputs, stopped_ids: list[str]) -> None:
        """A step's outputs; `stopped_ids` were ended by a stop string, which only the front
        end sees."""
        num_tokens = 0
        for output in outputs.outputs:
            tracked = self._tracked.get(output.request_id)
            if tracked is None:
                continue
            if output.new_token_ids:
                num_tokens += self._on_tokens(tracked, output, outputs.timestamp)
            if output.finish_reason is not None:
                self._on_finished(output.request_id, output.finish_reason, outputs.timestamp)
        for request_id in stopped_ids:
            self._on_finished(request_id, "stop", outputs.timestamp)
        if num_tokens:
            self.series.iteration_tokens.observe(num_tokens)
        if outputs.stats is not None:
            self._on_stats(outputs.stats)

    def on_aborted(self, request_ids: list[str], now: float) -> None:
        """Core requests that nobody waits for any longer."""
        for request_id in request_ids:
            self._on_finished(request_id, "abort", now)

    def on_rejected(self, reason: str) -> None:
        """A request was turned away at a queue limit of that name."""
        self.series.admission_rejections.of(reason).inc()

    def finished_counts(self) -> dict[str, int]:
        """Requests ended, by reason."""
        return {
            reason: int(self.series.request_success.of(reason).value) for reason in FINISH_REASONS
        }

    def _on_tokens(self, tracked: _Tracked, output: EngineCoreOutput, now: float) -> int:
        """Counts new tokens; returns how many the step worked on for them, prompt included."""
        series, group, num_new = self.series, tracked.group, len(output.new_token_ids)
        num_worked = num_new
        if not tracked.num_tokens:
            tracked.first_token_time = now
            tracked.scheduled_time = output.scheduled_time or now
            tracked.num_cached_tokens = output.num_cached_tokens
            ttft_s = max(0.0, now - group.arrival_time)
            series.time_to_first_token.observe(ttft_s)
            self.recent_ttft_s.append(ttft_s)
            num_worked += self._count_prompt(tracked)
        else:
            gap_s = max(0.0, now - tracked.last_token_time)
            series.inter_token_latency.observe(gap_s)
            self.recent_itl_s.append(gap_s)
        tracked.last_token_time = now
        tracked.num_tokens += num_new
        tracked.num_preemptions = output.num_preemptions
        series.generation_tokens.inc(num_new)
        return num_worked

    def _count_prompt(self, tracked: _Tracked) -> int:
        group, series = tracked.group, self.series
        num_computed = group.num_prompt_tokens - tracked.num_cached_tokens
        if group.is_prompt_counted:
            return num_computed
        group.is_prompt_counted = True
        series.prompt_tokens.inc(group.num_prompt_tokens)
        series.prompt_tokens_cached.inc(tracked.num_cached_tokens)
        series.prompt_tokens_by_source.of("local_compute").inc(num_computed)
        series.prompt_tokens_by_source.of("local_cache_hit").inc(tracked.num_cached_tokens)
        return num_computed

    def _on_finished(self, request_id: str, reason: str, now: float) -> None:
        tracked = self._tracked.pop(request_id, None)
        if tracked is None:
            return
        series, group = self.series, tracked.group
        series.request_success.of(reason).inc()
        series.e2e_request_latency.observe(max(0.0, now - group.arrival_time))
        series.request_prompt_tokens.observe(group.num_prompt_tokens)
        series.request_generation_tokens.observe(tracked.num_tokens)
        series.request_params_max_tokens.observe(tracked.max_tokens)
        series.request_num_preemptions.observe(tracked.num_preemptions)
        if tracked.num_tokens:
            self._observe_phases(tracked)
        group.max_tokens_generated = max(group.max_tokens_generated, tracked.num_tokens)
        group.num_open -= 1
        if not self._tracked:
            self._show(_IDLE)
        if not group.num_open:
            series.request_params_n.observe(group.n)
            series.request_max_num_generation_tokens.observe(group.max_tokens_generated)

    def _observe_phases(self, tracked: _Tracked) -> None:
        series, group = self.series, tracked.group
        decode_s = tracked.last_token_time - tracked.first_token_time
        series.request_queue_time.observe(max(0.0, tracked.scheduled_time - group.arrival_time))
        series.request_prefill_time.observe(
            max(0.0, tracked.first_token_time - tracked.scheduled_time)
        )
        series.request_decode_time.observe(max(0.0, decode_s))
        series.request_inference_time.observe(
            max(0.0, tracked.last_token_time - tracked.scheduled_time)
        )
        series.request_prefill_kv_computed_tokens.observe(
            group.num_prompt_tokens - tracked.num_cached_tokens
        )
        if tracked.num_tokens > 1:
            series.request_time_per_output_token.observe(decode_s / (tracked.num_tokens - 1))

    def _on_stats(self, stats: SchedulerStats) -> None:
        series = self.series
        series.prefix_cache_queries.inc(stats.num_prefix_queried_tokens)
        series.prefix_cache_hits.inc(stats.num_prefix_hit_tokens)
        series.num_preemptions.inc(stats.num_preemptions)
        # A step that was under way when the last request was aborted still counts it, and no
        # other step will follow to correct that.
        self._show(stats if self._tracked else _IDLE)

    def _show(self, stats: SchedulerStats) -> None:
        self.latest = stats
        series = self.series
        series.num_requests_running.set(stats.num_running)
        series.num_requests_waiting.set(stats.num_waiting)
        series.num_requests_waiting_by_reason.of("capacity").set(stats.num_waiting)
        series.kv_cache_usage_perc.set(stats.kv_cache_usage)

    def snapshot(self) -> dict[str, Any]:
        """The parts of the live view that are counted here."""
        series = self.series
        return {
            "tokens": {
                "prompt": int(series.prompt_tokens.value),
                "cached": int(series.prompt_tokens_cached.value),
                "generation": int(series.generation_tokens.value),
            },
            "latency": {
                "ttft_s": _percentiles(self.recent_ttft_s),
                "itl_s": _percentiles(self.recent_itl_s),
            },
            "prefix_cache": {
                "queried_tokens": int(series.prefix_cache_queries.value),
                "hit_tokens": int(series.prefix_cache_hits.value),
            },
            "preemptions": int(series.num_preemptions.value),
        }


def _percentiles(values: deque[float]) -> dict[str, float] | None:
    if not values:
        return None
    ordered = sorted(values)
    return {
        "last": values[-1],
        "p50": ordered[len(ordered) // 2],
        "p99": ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)],
    }
