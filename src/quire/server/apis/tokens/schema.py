"""`/inference/v1/generate`: tokens in, tokens out. The request, the reply, and the chunks of a
streamed one."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from quire.server.requests import fields

OutputMode = Literal["tokens", "text"]


class TokenSampling(fields.SamplerFields, kw_only=True, forbid_unknown_fields=True):
    """The public fields of `SamplingParams`. One that is missing or null has its default there, not
    the model's; without `max_tokens` the reply may fill the context."""

    n: fields.Int64 | None = None
    watermarking: bool | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[fields.TokenId] | None = None
    ignore_eos: bool | None = None
    max_tokens: fields.Int64 | None = None
    min_tokens: fields.Int64 | None = None
    logprobs: fields.Int64 | None = None
    prompt_logprobs: fields.Int64 | None = None
    prompt_logprob_token_ids: Any = None
    prompt_logprob_start: fields.Int64 | None = None
    logprob_token_ids: list[fields.TokenId] | None = None
    flat_logprobs: bool | None = None
    detokenize: bool | None = None
    """False: the text is not needed; refused with `stop` and for replies with text."""
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    output_kind: fields.Int64 | None = None
    """Accepted, as the next one: `stream` decides."""
    skip_clone: bool | None = None
    stream_interval: fields.Int64 | None = None
    structured_outputs: dict[str, Any] | None = None
    allowed_token_ids: list[fields.TokenId] | None = None
    extra_args: dict[str, Any] | None = None
    bad_words: list[str] | None = None
    skip_reading_prefix_cache: bool | None = None
    thinking_token_budget: fields.Int64 | None = None
    repetition_detection: dict[str, Any] | None = None
    routed_experts_prompt_start: fields.Int64 | None = None
    trace_decode_token_ids: list[fields.TokenId] | None = None


class TokensRequest(fields.CacheFields, kw_only=True, forbid_unknown_fields=True):
    """Token ids to be continued. What the render endpoints answer is such a request."""

    token_ids_field: ClassVar[str] = "token_ids"

    token_ids: list[fields.TokenId]
    sampling_params: TokenSampling
    model: str | None = None
    request_id: fields.RequestIdText | None = None
    prompt: str | None = None
    """Accepted, as the render endpoints write it: `token_ids` decide."""
    output_mode: OutputMode = "tokens"
    """`text`: the reply has the text too, and log-probabilities name tokens by their texts."""
    return_token_ids: bool | None = None
    """The reply has the prompt's token ids."""
    stream: bool | None = False
    stream_options: fields.StreamOptions | None = None
    priority: fields.Int64 | None = 0
    reasoning_ended: bool | None = None
    """Accepted: the engine sees from the prompt whether it ends within the reasoning."""
    reasoning_parser_kwargs: dict[str, Any] | None = None
    token_offsets: Any = None
    """Accepted; it has no effect without the text."""
    parse_context: Any = None
    """Accepted: replies are not read here."""
    features: Any = None
    content_parts: list[dict[str, Any]] | None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None


class TokenCandidate(msgspec.Struct, kw_only=True):
    """A token at some place, with its log-probability."""

    token_id: fields.TokenId
    logprob: float
    rank: fields.Count | None = None
    """1 for the most likely token; null if it is not known."""


class TokenPosition(TokenCandidate, kw_only=True):
    """The token that was chosen at some place, and the best ones there."""

    top_logprobs: list[TokenCandidate]


class TokenLogprobs(msgspec.Struct, kw_only=True):
    """Log-probabilities, token by token."""

    content: list[TokenPosition]


class TokensChoice(msgspec.Struct, kw_only=True):
    """One continuation, or the new part of one in a stream."""

    index: fields.Count
    finish_reason: fields.FinishReasonText | None = None
    stop_reason: int | str | None = None
    """The stop string or token that ended it; null for end-of-sequence and all other ends."""
    token_ids: list[fields.TokenId]
    text: str | msgspec.UnsetType = msgspec.UNSET
    """With `output_mode` `text`."""
    logprobs: Any = None
    """`TokenLogprobs`; with `output_mode` `text` those of a chat. Null if none were asked for."""


class TokensReply(msgspec.Struct, kw_only=True):
    """A whole reply."""

    request_id: str
    model: str
    created: int
    output_mode: OutputMode
    choices: list[TokensChoice]
    usage: fields.Usage
    prompt_logprobs: fields.ReplyPromptLogprobs | None = None
    prompt_token_ids: list[fields.TokenId] | None = None


class TokensChunk(msgspec.Struct, kw_only=True):
    """One event of a streamed reply."""

    request_id: str
    output_mode: OutputMode
    choices: list[TokensChoice]
    usage: fields.Usage | None = None
    prompt_token_ids: list[fields.TokenId] | msgspec.UnsetType = msgspec.UNSET
    """In the first chunk, if they were asked for."""


class AbortTokensRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Requests whose generation ends."""

    request_ids: Annotated[list[str], Meta(max_length=4096)]
    """The `request_id`s of replies."""
