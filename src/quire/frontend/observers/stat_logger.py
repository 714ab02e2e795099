"""`LoggingStatLogger`: a line of statistics every ten seconds, in vLLM's format.

An observer of the output processor. Logs after a step, or on request.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from quire.config.records import EngineConfig
from quire.frontend.completion_state import CompletionState
from quire.frontend.observers.observer import RequestObserver, StepTokens
from quire.frontend.request_record import RequestRecord
from quire.log import get_logger
from quire.protocol import SchedulerStats

if TYPE_CHECKING:
    from quire.frontend.observers.user_stats import StatLoggerFactory

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
        """Logs when the interval has passed."""
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
