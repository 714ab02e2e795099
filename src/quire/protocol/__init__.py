"""The messages between the parts of the engine."""

from quire.protocol.cache_scope import CacheScope
from quire.protocol.input_rows import InputRows
from quire.protocol.messages import (
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    FinishReason,
    ImageInput,
    KVStoreStats,
    PooledRows,
    PromptChunkLogprobs,
    ScheduledRequest,
    SchedulePlan,
    SchedulerStats,
    SpeculationStats,
    StepResult,
    TokenLogprobs,
)

__all__ = [
    "CacheScope", "EngineCoreOutput", "EngineCoreOutputs", "EngineCoreRequest", "FinishReason",
    "ImageInput", "InputRows", "KVStoreStats", "PooledRows", "PromptChunkLogprobs",
    "ScheduledRequest", "SchedulePlan", "SchedulerStats", "SpeculationStats", "StepResult",
    "TokenLogprobs",
]  # fmt: skip
