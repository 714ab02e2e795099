"""The fields that replies of several APIs share: token counts, timings, log-probabilities."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from quire.server.generation.request_fields import Count

FinishReasonText = Literal[
    "stop", "length", "abort", "error", "repetition", "tool_calls", "function_call"
]


class PromptTokensDetails(msgspec.Struct, kw_only=True):
    """Where the prompt's tokens came from."""

    cached_tokens: Count = 0
    """Found in the prefix cache."""


class CompletionTokensDetails(msgspec.Struct, kw_only=True):
    """Kinds of generated tokens."""

    reasoning_tokens: Count = 0
    """Tokens of the reasoning."""
    accepted_prediction_tokens: Count | msgspec.UnsetType = msgspec.UNSET
    """Tokens of the request's `prediction` that were tried and right; present if it has one."""
    rejected_prediction_tokens: Count | msgspec.UnsetType = msgspec.UNSET
    """Tokens of the prediction that were tried and wrong. They are not part of the reply."""


class Usage(msgspec.Struct, kw_only=True):
    """Token counts of one reply."""

    prompt_tokens: Count = 0
    total_tokens: Count = 0
    completion_tokens: Count = 0
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | msgspec.UnsetType = msgspec.UNSET
    """Present for a reasoning model, and for a request with a prediction."""


class RequestMetrics(msgspec.Struct, kw_only=True):
    """Timings of one reply, on request."""

    time_to_first_token_ms: float | None = None
    generation_time_ms: float | None = None
    queue_time_ms: float | None = None
    mean_itl_ms: float | None = None
    tokens_per_second: float | None = None
    speculative_decoding: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    """Counts of draft tokens, if the server reports them and there is one choice."""


class PromptLogprob(msgspec.Struct, kw_only=True):
    """One token's log-probability at one place of the prompt."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


ReplyPromptLogprobs = list[dict[str, PromptLogprob] | None]
"""Of each prompt token, by token id: its own first, then those of the best ones; null for the
first token, which nothing precedes."""


class ReplyFields(msgspec.Struct, kw_only=True):
    """Fields of every reply and of every event of a stream."""

    id: str
    created: int
    model: str
    system_fingerprint: str | None = None


class WholeReplyFields(ReplyFields, kw_only=True):
    """Fields of every whole reply."""

    usage: Usage
    metrics: RequestMetrics | msgspec.UnsetType = msgspec.UNSET


class ChunkFields(ReplyFields, kw_only=True):
    """Fields of every event of a stream."""

    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    metrics: RequestMetrics | msgspec.UnsetType = msgspec.UNSET


class TokenLogprob(msgspec.Struct, kw_only=True):
    """A token, its log-probability and its UTF-8 bytes."""

    token: str
    logprob: float = -9999.0
    bytes: list[int] | None = None


class PositionLogprobs(TokenLogprob, kw_only=True):
    """A chosen token, and the best ones at its position."""

    top_logprobs: list[TokenLogprob]


class ChatLogprobs(msgspec.Struct, kw_only=True):
    """Log-probabilities of the reply's tokens."""

    content: list[PositionLogprobs] | None = None
    refusal: None = None


class CompletionLogprobs(msgspec.Struct, kw_only=True):
    """Log-probabilities, position by position, in parallel lists."""

    text_offset: list[Count]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]
