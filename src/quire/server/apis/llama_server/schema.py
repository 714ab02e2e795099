"""llama-server's requests and replies."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import msgspec

from quire.server.conversation.message import ChatMessage
from quire.server.conversation.prompt_fields import TemplateFields
from quire.server.requests.fields import Count, Int64, SamplerFields, TokenId


class LlamaFields(SamplerFields, kw_only=True, forbid_unknown_fields=True):
    """Number of generated tokens, and parameters of sampling."""

    model: str | None = None
    stream: bool | None = False
    n_predict: Int64 | None = -1
    """Most tokens; -1: as many as there is room for."""
    repeat_penalty: float | None = None
    logit_bias: list[tuple[TokenId, float]] | dict[str, float] | None = None  # type: ignore[assignment]
    stop: str | list[str] | None = None
    ignore_eos: bool | None = False
    grammar: str | None = None
    json_schema: dict[str, Any] | None = None
    return_tokens: bool | None = False
    cache_prompt: bool | None = True
    """Accepted: prompts are always cached."""
    id_slot: Int64 | None = -1
    """Accepted: any slot computes the same."""
    samplers: list[str] | None = None
    """Accepted: the order is fixed."""
    n_keep: Int64 | None = 0
    """Accepted: a prompt that is too long is refused."""
    n_probs: Int64 | None = 0
    typical_p: float | None = 1.0
    mirostat: Int64 | None = 0
    dynatemp_range: float | None = 0.0
    xtc_probability: float | None = 0.0
    dry_multiplier: float | None = 0.0


class LlamaCompletionRequest(LlamaFields, kw_only=True):
    """A prompt to be continued."""

    token_ids_field: ClassVar[str] = "prompt"

    prompt: str | list[TokenId]
    """A text, or token ids."""


class ExtraFile(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Text of another file, for context."""

    text: str
    filename: str = ""


class InfillRequest(LlamaFields, kw_only=True):
    """A text with a gap."""

    input_prefix: str
    """Text before the gap."""
    input_suffix: str
    """Text after the gap."""
    input_extra: list[ExtraFile] | None = None
    prompt: str = ""
    """Begin of the gap's text."""


class Timings(msgspec.Struct, kw_only=True):
    """Counts and times of a request."""

    cache_n: Count = 0
    """Tokens of the prompt that were in the prefix cache."""
    prompt_n: Count = 0
    prompt_ms: float = 0.0
    prompt_per_second: float = 0.0
    predicted_n: Count = 0
    predicted_ms: float = 0.0
    predicted_per_second: float = 0.0


class LlamaReply(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A whole reply, or an event of a stream. The last event has the counts."""

    index: Literal[0] = 0
    content: str
    tokens: list[TokenId]
    stop: bool
    id_slot: Literal[0] = 0
    model: str | msgspec.UnsetType = msgspec.UNSET
    tokens_predicted: Count | msgspec.UnsetType = msgspec.UNSET
    tokens_evaluated: Count | msgspec.UnsetType = msgspec.UNSET
    tokens_cached: Count | msgspec.UnsetType = msgspec.UNSET
    truncated: bool | msgspec.UnsetType = msgspec.UNSET
    stop_type: Literal["eos", "limit", "word"] | msgspec.UnsetType = msgspec.UNSET
    stopping_word: str | msgspec.UnsetType = msgspec.UNSET
    timings: Timings | msgspec.UnsetType = msgspec.UNSET


class ApplyTemplateRequest(TemplateFields, kw_only=True):
    """A conversation whose prompt is asked for."""

    messages: list[ChatMessage]


class AppliedTemplate(msgspec.Struct, kw_only=True):
    """The prompt."""

    prompt: str


class Props(msgspec.Struct, kw_only=True):
    """Facts that clients ask a server for first."""

    default_generation_settings: dict[str, Any]
    total_slots: Count
    model_path: str
    """The name of the model. The path is not shown to clients."""
    model_alias: str
    chat_template: str
    bos_token: str
    eos_token: str
    modalities: dict[str, bool]
    is_sleeping: bool
    build_info: str


class Slot(msgspec.Struct, kw_only=True):
    """A place for a request that runs. It does not show the prompts of requests."""

    id: Count
    n_ctx: Count
    is_processing: bool
    speculative: bool


class LlamaAdapter(msgspec.Struct, kw_only=True):
    """An adapter, which a request chooses by its name as `model`."""

    id: Count
    name: str
    path: str
    scale: float = 1.0
