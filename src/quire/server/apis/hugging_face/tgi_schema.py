"""The requests and replies of text-generation-inference."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from quire.server.requests.fields import Count, Int64, TokenId


class TgiGrammar(msgspec.Struct, kw_only=True):
    """Form of the reply."""

    type: Literal["json", "regex", "json_schema"]
    value: str | dict[str, Any]


class TgiParameters(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How many tokens are generated, and how each is chosen."""

    max_new_tokens: Int64 | None = None
    """By default 100."""
    do_sample: bool | None = False
    """Without it and without a field that shapes the choice, the most likely token is taken."""
    temperature: float | None = None
    top_k: Int64 | None = None
    top_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: Int64 | None = None
    stop: list[str] | None = None
    truncate: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    """Keep so many of the last tokens of the prompt."""
    grammar: TgiGrammar | None = None
    return_full_text: bool | None = False
    """Begin the text with the prompt."""
    details: bool | None = False
    adapter_id: str | None = None
    """Replaces the model's name."""
    best_of: Int64 | None = None
    decoder_input_details: bool | None = False
    top_n_tokens: Int64 | None = None
    typical_p: float | None = None
    watermark: bool | None = False


class TgiRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A prompt to be continued."""

    inputs: str
    parameters: TgiParameters | None = None
    model: str | None = None
    stream: bool | None = None
    """At `/` alone: whether the reply is a stream."""


class TgiToken(msgspec.Struct, kw_only=True):
    """A token of the reply."""

    id: TokenId
    text: str
    logprob: float
    special: bool


Finish = Literal["length", "eos_token", "stop_sequence"]


class TgiDetails(msgspec.Struct, kw_only=True):
    """Counts of a whole reply, and its tokens."""

    finish_reason: Finish
    generated_tokens: Count
    seed: Int64 | None = None
    prefill: list[TgiToken] = []
    tokens: list[TgiToken] = []


class TgiReply(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A whole reply."""

    generated_text: str
    details: TgiDetails | None = None


class TgiStreamDetails(msgspec.Struct, kw_only=True):
    """Counts, in the last event."""

    finish_reason: Finish
    generated_tokens: Count
    input_length: Count
    seed: Int64 | None = None


class TgiEvent(msgspec.Struct, kw_only=True):
    """A token of a stream. The last one has the whole text."""

    index: Count
    token: TgiToken
    generated_text: str | None = None
    details: TgiStreamDetails | None = None
