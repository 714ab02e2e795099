"""The results of requests. Names are vLLM's."""

from quire.outputs.logprobs import (
    FlatLogprobs,
    Logprob,
    LogprobsOnePosition,
    PromptLogprobs,
    SampleLogprobs,
)
from quire.outputs.request_output import CompletionOutput, RequestOutput, RequestStateStats

__all__ = [
    "CompletionOutput",
    "FlatLogprobs",
    "Logprob",
    "LogprobsOnePosition",
    "PromptLogprobs",
    "RequestOutput",
    "RequestStateStats",
    "SampleLogprobs",
]
