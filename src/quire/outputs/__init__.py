"""The results of requests. Names are vLLM's."""

from quire.outputs.counts import RequestStateStats
from quire.outputs.logprobs import (
    FlatLogprobs,
    Logprob,
    LogprobsOnePosition,
    PromptLogprobs,
    SampleLogprobs,
)
from quire.outputs.pooling import (
    ClassificationOutput,
    ClassificationRequestOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    LateChunk,
    LateChunkingMetadata,
    PoolingOutput,
    PoolingRequestOutput,
    ScoringOutput,
    ScoringRequestOutput,
)
from quire.outputs.request_output import (
    BeamSearchOutput,
    BeamSearchSequence,
    CompletionOutput,
    RequestOutput,
)

__all__ = [
    "BeamSearchOutput", "BeamSearchSequence", "ClassificationOutput",
    "ClassificationRequestOutput", "CompletionOutput", "EmbeddingOutput",
    "EmbeddingRequestOutput", "FlatLogprobs", "LateChunk", "LateChunkingMetadata", "Logprob",
    "LogprobsOnePosition", "PoolingOutput", "PoolingRequestOutput", "PromptLogprobs",
    "RequestOutput", "RequestStateStats", "SampleLogprobs", "ScoringOutput",
    "ScoringRequestOutput",
]  # fmt: skip
