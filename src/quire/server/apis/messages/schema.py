"""`/v1/messages` and `/v1/messages/count_tokens`, in Anthropic's form: what may be asked.

The replies are in `messages_reply`. Structs of all content blocks are one, because what converts
(see `lax_body`) knows no tagged unions; `requests.messages` checks each type's fields.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from quire.server.apis.messages.tools import ToolFields
from quire.server.generation.request_fields import CacheSalt, Int64

Effort = Literal["low", "medium", "high", "xhigh", "max"]


class Source(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Where a document or an image is. Of documents, the types `text` and `content` work."""

    type: str
    media_type: str | None = None
    data: str | None = None
    url: str | None = None
    file_id: str | None = None
    content: str | list[Block] | None = None


class Block(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A part of a message. The types `text`, `image`, `tool_use`, `tool_result`, `thinking`,
    `redacted_thinking`, `document` and `search_result` work, and `tool_reference` in a result."""

    type: str
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    """Accepted: the thinking is sent back as plain text."""
    data: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[Block] | None = None
    is_error: bool | None = None
    """Accepted: `content` describes the error."""
    tool_name: str | None = None
    source: str | Source | None = None
    title: str | None = None
    context: str | None = None
    citations: Any = None
    caller: dict[str, Any] | None = None
    """The caller of the tool; it has no effect."""
    cache_control: dict[str, Any] | None = None
    """Accepted: prompts with the same beginning share the cache without marks."""


class InputMessage(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One turn of the conversation, or an instruction between two turns."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class Thinking(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Whether the model reasons before it answers."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Int64 | None = None
    """Most tokens of the reasoning, at least 1024 and less than `max_tokens`."""
    display: str | None = None
    """Accepted: reasoning is returned as the model wrote it."""


class OutputFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What the text of the reply has to look like."""

    type: Literal["json_schema"] = "json_schema"
    schema: dict[str, Any] | None = None


class OutputConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The reasoning effort and the form of the output."""

    effort: Effort | None = None
    format: OutputFormat | None = None


class PromptFields(ToolFields, kw_only=True):
    """The fields that make the prompt."""

    model: str
    messages: Annotated[list[InputMessage], Meta(min_length=1)]
    system: str | list[Block] | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    """An older name of `output_config.format`."""
    cache_control: dict[str, Any] | None = None
    """Accepted: all of a prompt is cached."""
    mcp_servers: list[Any] | None = None
    thread: Any = None
    """Refused: no conversation is kept here. Clients then send the whole of it."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Further variables of the chat template."""


class CountTokensRequest(PromptFields, kw_only=True):
    """A prompt whose tokens are counted."""


class MessagesRequest(PromptFields, kw_only=True):
    """A conversation to be continued."""

    max_tokens: Int64
    """Most tokens to generate. More than the context has room for: the reply ends with it."""
    stream: bool | None = False
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int64 | None = None
    metadata: dict[str, Any] | None = None
    """Accepted for the caller's own records; it has no effect."""
    service_tier: str | None = None
    """Accepted; there is one tier."""
    container: Any = None
    cache_salt: CacheSalt | None = None
    """Requests share cached prefixes only with those of the same salt."""
    watermarking: bool | None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None
    vllm_xargs: dict[str, Any] | None = None
    mm_payload: Literal["tensors", "none"] | None = None
    """Accepted: a text model has no such payload."""
    return_mm_kwargs: bool | None = None
    """An older name of `mm_payload`."""
