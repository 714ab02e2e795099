"""The messages between engine parts."""

from quire.protocol.messages import (
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    FinishReason,
    KVStoreStats,
    PooledRows,
    PromptChunkLogprobs,
    ScheduledRequest,
    SchedulePlan,
    SchedulerStats,
    StepResult,
    TokenLogprobs,
)

__all__ = [
    "EngineCoreOutput", "EngineCoreOutputs", "EngineCoreRequest", "FinishReason", "KVStoreStats",
    "PooledRows", "PromptChunkLogprobs", "ScheduledRequest", "SchedulePlan", "SchedulerStats",
    "StepResult", "TokenLogprobs",
]  # fmt: skip
