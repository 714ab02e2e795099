"""`/v1/messages` and `/v1/messages/count_tokens`: the requests."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from quire.server.conversation.prompt_fields import TemplateVariables
from quire.server.requests.fields import CacheSalt, Int64


class ToolDefinition(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A tool that the model may call and the client runs."""

    name: str = ""
    type: str | None = None
    """`custom`, or none. Tools of other types, which the vendor runs or has trained its models on,
    are left out."""
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    eager_input_streaming: bool | None = None
    """Accepted: inputs are always streamed as they come."""
    cache_control: dict[str, Any] | None = None


class ToolChoice(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Whether the model may or has to call tools."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ToolFields(TemplateVariables, kw_only=True, forbid_unknown_fields=True):
    """The fields of a request that describe its tools, to the chat template, too."""

    tools: list[ToolDefinition] | None = None
    tool_choice: ToolChoice | None = None


Effort = Literal["low", "medium", "high", "xhigh", "max"]


class Source(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Source of a document or an image. Of documents, the types `text` and `content` work."""

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
    """Form of the reply's text."""

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
