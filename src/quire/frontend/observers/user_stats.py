"""The arguments of user-defined loggers, and their base classes. Names and fields are vLLM's, as
far as they apply to Quire.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quire.config.records import EngineConfig


@dataclass
class PrefixCacheStats:
    """Prompt tokens looked up in the prefix cache since the last record."""

    queries: int = 0
    hits: int = 0


@dataclass
class SchedulerStats:
    """State of the scheduler after a step."""

    num_running_reqs: int = 0
    num_waiting_reqs: int = 0
    kv_cache_usage: float = 0.0
    """Share of the blocks that hold tokens of running requests, 0 to 1."""
    prefix_cache_stats: PrefixCacheStats = field(default_factory=PrefixCacheStats)


@dataclass
class PromptTokenStats:
    """Tokens of prompts whose first token was computed; counts once per prompt with several
    outputs."""

    computed: int = 0
    local_cache_hit: int = 0
    cached_tokens: int = 0
    """Tokens not computed; equal to the hits."""
    total: int = 0


@dataclass
class FinishedRequestStats:
    """One output that has ended. Times are in seconds."""

    finish_reason: str
    """`stop`, `length`, `abort`, `error` or `repetition`."""
    request_id: str | None = None
    """The caller's request id."""
    e2e_latency: float = 0.0
    num_prompt_tokens: int = 0
    num_preemptions: int = 0
    num_generation_tokens: int = 0
    max_tokens_param: int | None = None
    queued_time: float = 0.0
    prefill_time: float = 0.0
    inference_time: float = 0.0
    decode_time: float = 0.0
    mean_time_per_output_token: float = 0.0
    num_cached_tokens: int = 0


@dataclass
class IterationStats:
    """The tokens of a step, and the requests that ended since the previous step."""

    iteration_timestamp: float = 0.0
    """Time of the end of the step, in seconds since the epoch."""
    num_generation_tokens: int = 0
    prompt_token_stats: PromptTokenStats = field(default_factory=PromptTokenStats)
    num_preempted_reqs: int = 0
    finished_requests: list[FinishedRequestStats] = field(default_factory=list)
    max_num_generation_tokens_iter: list[int] = field(default_factory=list)
    """Number of tokens of the longest output, for each request that has ended."""
    n_params_iter: list[int] = field(default_factory=list)
    """The `n` of each request that has ended."""
    time_to_first_tokens_iter: list[float] = field(default_factory=list)
    inter_token_latencies_iter: list[float] = field(default_factory=list)

    @property
    def num_prompt_tokens(self) -> int:
        """Total number of prompt tokens."""
        return self.prompt_token_stats.total


class StatLoggerBase(ABC):
    """Base class of user-defined loggers. Pass a subclass, or a function that creates one, as
    `AsyncLLM.from_engine_args(..., stat_loggers=[...])`."""

    @abstractmethod
    def __init__(self, vllm_config: EngineConfig, engine_index: int = 0) -> None:
        """Called when the engine is created; its index is always 0."""

    @abstractmethod
    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: None = None,
        engine_idx: int = 0,
    ) -> None:
        """Called after each step. `mm_cache_stats` is always None; `/metrics` has
        `vllm:mm_cache_queries` and `vllm:mm_cache_hits`."""

    @abstractmethod
    def log_engine_initialized(self) -> None:
        """Called once, when the engine is ready."""

    def log(self) -> None:  # noqa: B027 - need not be overridden
        """Called every ten seconds (VLLM_LOG_STATS_INTERVAL) while steps run, and by
        `do_log_stats`."""

    def record_sleep_state(self, is_awake: int, level: int) -> None:  # noqa: B027
        """Called by `sleep` with 1 and the level, and by `wake_up` with two zeros. The name
        `is_awake` is vLLM's."""


class AggregateStatLoggerBase(StatLoggerBase):
    """A logger for all engines together: `engine_indexes` is `[0]`."""

    @abstractmethod
    def __init__(self, vllm_config: EngineConfig, engine_indexes: list[int]) -> None:
        """Called when the engine is created."""

    def record_admission_rejection(self, reason: str) -> None:
        """Called when a request is rejected, with the name of the limit."""


PerEngineStatLoggerFactory = Callable[..., StatLoggerBase]
"""Called with the configuration and the engine's index."""
AggregateStatLoggerFactory = type[AggregateStatLoggerBase]
StatLoggerFactory = AggregateStatLoggerFactory | PerEngineStatLoggerFactory
