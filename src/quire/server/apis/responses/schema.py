"""`/v1/responses`: the request."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from quire.server.apis.responses.items_schema import Item
from quire.server.apis.responses.tools import ToolFields
from quire.server.args import ReasoningEffort
from quire.server.requests.fields import Int64

Identifier = Annotated[str, Meta(max_length=512)]
"""An identifier that replies repeat."""
ResponseId = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9._:-]+$")]
"""An id that can be part of a URL."""


class TextFormat(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Constraint on the answer: `text` for none, `json_object`, or `json_schema`."""

    type: str
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | bool | None = None
    strict: bool | None = None
    """Accepted: the schema always holds."""


class TextOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The answer's form."""

    format: TextFormat | None = None
    verbosity: str | None = None
    """Accepted; it has no effect."""


class ReasoningOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The reasoning before the answer."""

    effort: ReasoningEffort | None = None
    """Shown to the chat template."""
    summary: str | None = None
    """Accepted: the reply has the reasoning itself."""
    generate_summary: str | None = None
    """An older name of `summary`."""


class ResponsesStreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Options of a stream."""

    include_obfuscation: bool | None = None
    """Accepted: no event is padded here."""


class ShownCacheOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Options of a prompt's cache that a reply repeats."""

    mode: Literal["implicit", "explicit"] = "implicit"
    ttl: Literal["30m"] = "30m"
    comparison_response_id: Identifier | None = None


class PromptCacheOptions(ShownCacheOptions, kw_only=True, forbid_unknown_fields=True):
    """Options of a prompt's cache; no option has an effect."""

    prewarm: bool | None = None


class ResponsesRequest(ToolFields, kw_only=True):
    """A request for a response."""

    input: str | list[Item] | None = None
    instructions: str | None = None
    """A system message before the input; those of earlier responses do not count."""
    previous_response_id: str | None = None
    """A stored response that this one goes on from."""
    background: bool | None = False
    """Answer at once, and go on when the connection ends."""
    stream_options: ResponsesStreamOptions | None = None
    store: bool | None = None
    """Keep the response in memory for later requests; by default true, if the server keeps any."""
    include: list[str] | None = None
    """`message.output_text.logprobs` works. `reasoning.encrypted_content` is accepted: the reply
    has the reasoning itself."""
    metadata: dict[str, str] | None = None
    """Accepted for the caller's own records."""

    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    include_reasoning: bool | None = True
    max_output_tokens: Int64 | None = None
    """Most tokens to generate, reasoning included; by default all that the context has room for."""
    truncation: str | None = "disabled"
    """`auto`: of a prompt that is too long, the beginning is cut off."""
    top_logprobs: Int64 | None = None
    user: Identifier | None = None
    """Accepted for the caller's own records, as `safety_identifier`."""
    safety_identifier: Identifier | None = None
    prompt_cache_key: Identifier | None = None
    """Accepted: prompts with the same beginning share the cache without a key."""
    prompt_cache_options: PromptCacheOptions | None = None
    """Accepted: the cache keeps prompts, and as much as fits, without options."""
    prompt_cache_retention: Literal["in_memory", "in-memory", "24h"] | None = None
    """Accepted: the cache keeps as much as fits."""
    service_tier: str | None = None
    """Accepted; there is one tier."""
    conversation: Any = None
    prompt: Any = None
    context_management: Any = None

    chat_template_kwargs: dict[str, Any] | None = None
    """Further variables of the chat template."""
    request_id: ResponseId | None = None
    """The id of the response; by default a random one."""
    media_io_kwargs: dict[str, Any] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None
    mm_payload: str | None = None
    """Accepted: a text model has no such payload."""
    enable_response_messages: bool | None = False
    previous_input_messages: list[Any] | None = None
