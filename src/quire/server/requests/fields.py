"""Types that several endpoints share: usage, errors, stream options, and the request fields
that completions and chat have in common. The OpenAPI document is generated from these types.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta


class JsonSchemaFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A JSON schema for the reply."""

    name: str
    description: str | None = None
    schema: dict[str, Any] | bool | None = None
    strict: bool | None = None
    """Accepted: the schema always holds."""


class ResponseFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Constraint on the reply: `text` for none, `json_object`, `json_schema`, or
    `structural_tag`."""

    type: str
    json_schema: JsonSchemaFormat | None = None
    schema: dict[str, Any] | None = None
    """A schema for `json_object`, as in llama-server."""
    structures: list[dict[str, Any]] | None = None
    triggers: list[str] | None = None
    format: dict[str, Any] | None = None
    """A structural tag is either `structures` and `triggers`, or a `format`."""


Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
CacheSalt = Annotated[str, Meta(min_length=1, max_length=128)]
DEFAULT_MAX_TOKENS = 16
"""Default `max_tokens` of completions, as in OpenAI's API."""
PROMPT_KINDS = (
    "prompt must be a string, a list of strings, a list of token ids or a list of such lists; "
    "it holds different kinds"
)
"""Refuses a prompt that its type alone does not exclude."""
TRANSFERS = ("kv_transfer_params", "ec_transfer_params")
"""Fields by which servers that share the work of a request refer to each other."""
RequestIdText = Annotated[str, Meta(min_length=1, max_length=128)]


class StreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Contents of a stream besides text."""

    include_usage: bool | msgspec.UnsetType | None = msgspec.UNSET
    """A last chunk without choices that holds the usage."""
    continuous_usage_stats: bool | msgspec.UnsetType | None = msgspec.UNSET
    """The usage so far in every chunk."""
    include_obfuscation: bool | msgspec.UnsetType | None = msgspec.UNSET
    """Accepted: no chunk is padded here."""


class CacheFields(msgspec.Struct, kw_only=True):
    """The field that says with whom a request shares cached prefixes."""

    cache_salt: CacheSalt | None = None
    """Requests share cached prefixes only with those of the same salt."""


class SamplerFields(msgspec.Struct, kw_only=True):
    """Parameters of sampling that completions, chats, responses and tokens-in requests take, by the
    names that `SamplingParams` has. Null or missing: the model's default, or that of
    `SamplingParams`."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: Int64 | None = None
    min_p: float | None = None
    seed: Int64 | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    repeat_last_n: Int64 | None = None
    """The penalties look at this number of the last tokens, of the prompt, too; -1: at all. Missing
    in APIs like OpenAI's: at all, of which those of the prompt count for repetition alone."""
    logit_bias: dict[str, float] | None = None


class SharedFields(SamplerFields, kw_only=True):
    """Request fields that completions, chats and responses have in common."""

    model: str | None = None
    stream: bool | None = False
    stop: str | list[str] | None = None
    stop_token_ids: list[TokenId] | None = None
    include_stop_str_in_output: bool | None = False
    ignore_eos: bool | None = False
    skip_special_tokens: bool | None = None
    """By default true, unless the model's generation_config.json says otherwise."""
    spaces_between_special_tokens: bool | None = True
    structured_outputs: dict[str, Any] | None = None
    """One of `json`, `regex`, `choice`, `grammar`, `json_object` and `structural_tag`, which the
    reply follows, with vLLM's options."""
    watermarking: bool | None = None
    priority: Int64 | None = 0
    """Lower runs earlier, where the server schedules by priority."""
    cache_salt: CacheSalt | None = None
    """Requests share cached prefixes only with those of the same salt."""
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None
    vllm_xargs: dict[str, Any] | None = None
    session_id: str | None = None
    """Accepted; it has no effect."""
    return_mm_kwargs: bool | None = None
    """An older name of `mm_payload`."""


class ConstraintFields(SharedFields, kw_only=True, forbid_unknown_fields=True):
    """The fields of completions and chats that constrain the reply, besides
    `structured_outputs`."""

    response_format: ResponseFormat | None = None
    guided_json: dict[str, Any] | str | None = None
    """Older names of the fields of `structured_outputs`."""
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    structural_tag: str | None = None
    guided_whitespace_pattern: str | None = None
    guided_decoding_backend: str | None = None
    """A name of vLLM's, without effect: there is one."""


class GenerationFields(ConstraintFields, kw_only=True, forbid_unknown_fields=True):
    """Request fields that completions and chat share.

    Those that do not work yet are here too, so that they are refused by name, not ignored.
    """

    is_chat: ClassVar[bool] = False
    """Whether it asks for the next message of a conversation, not for the rest of a prompt."""
    default_max_tokens: ClassVar[int | None] = None
    """Meaning of a null `max_tokens`; None: whatever the context has room for."""

    echo: bool | None = False
    logprobs: Any = None
    """A number of tokens, or whether to return log-probabilities: subclasses say which."""
    stream_options: StreamOptions | None = None
    n: Int64 | None = 1
    max_tokens: Int64 | None = None
    min_tokens: Int64 | None = 0
    stream_interval: Int64 | None = None
    user: str | None = None
    """An identifier for the caller's own records; it has no effect."""
    request_id: RequestIdText | None = None
    return_tokens_as_token_ids: bool | None = None
    """Spell tokens in logprobs as `token_id:N`."""
    return_token_ids: bool | None = None
    include_metrics: bool | None = None
    """Put timings into the reply."""
    prompt_logprobs: Int64 | None = None
    """Number of the best tokens whose log-probabilities are returned for each place of the
    prompt."""

    allowed_token_ids: list[TokenId] | None = None
    bad_words: list[str] | None = None
    logprob_token_ids: list[TokenId] | None = None
    use_beam_search: bool | None = False
    length_penalty: float | None = 1.0
    best_of: Int64 | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1, le=2**63 - 1)] | None = None
    """Most tokens of each prompt that are kept; -1: what leaves room for one more."""
    truncation_side: Literal["left", "right"] | None = None
    """The end of a prompt that is cut off: `left` keeps its last tokens. By default `left`, after
    the model's start token."""
    thinking_token_budget: Int64 | None = None
    repetition_detection: dict[str, Any] | None = None
    routed_experts_prompt_start: Int64 | None = 0
    return_token_offsets: bool | None = None
    return_weight_versions: bool | None = False
    mm_payload: Literal["tensors", "none"] | None = None
    """Accepted: a text model has no such payload."""

    logits_processors: Any = None
    early_stopping: Any = None


FinishReasonText = Literal[
    "stop", "length", "abort", "error", "repetition", "tool_calls", "function_call"
]


class PromptTokensDetails(msgspec.Struct, kw_only=True):
    """Sources of the prompt's tokens."""

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
"""For each prompt token a dictionary from token ids to log-probabilities: its own comes first, then
those of the likeliest tokens. The first token has null, because no token precedes it."""


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
    kv_transfer_params: dict[str, Any] | None = None
    """For the server that goes on from the prompt, if the reply is to one prompt."""


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
