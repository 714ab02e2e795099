"""`/v1/messages` and `/v1/messages/count_tokens`: the requests, and the tools that they offer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from quire.errors import RequestError, quoted
from quire.server.apis.chat.tools import FunctionDefinition, Tool, ToolUse
from quire.server.generation.request_fields import CacheSalt, Int64


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


class ToolFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The fields of a request that describe its tools."""

    tools: list[ToolDefinition] | None = None
    tool_choice: ToolChoice | None = None


_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def chat_tool_fields(request: ToolFields) -> dict[str, Any]:
    """The fields of a chat request that describe its tools. Raises RequestError."""
    choice = request.tool_choice
    fields: dict[str, Any] = {
        "tools": _chat_tools(request.tools),
        "tool_choice": _chat_tool_choice(choice, request.tools),
    }
    if choice is not None:
        fields["parallel_tool_calls"] = not choice.disable_parallel_tool_use
    return fields


def _chat_tools(definitions: Sequence[ToolDefinition] | None) -> list[Tool] | None:
    """The tools that the model is shown; None if there are none. Raises RequestError."""
    tools = [
        _tool(f"tools[{index}]", each)
        for index, each in enumerate(definitions or ())
        if not _is_left_out(each)
    ]
    return tools or None


def names_left_out(definitions: Sequence[ToolDefinition] | None) -> list[str]:
    """Names for the tools that are left out: those of types that only the vendor's models know."""
    return [f"tools.{tool.name or tool.type}" for tool in definitions or () if _is_left_out(tool)]


def _is_left_out(tool: ToolDefinition) -> bool:
    return tool.type not in (None, "custom")


def _chat_tool_choice(
    choice: ToolChoice | None, definitions: Sequence[ToolDefinition] | None
) -> str | dict[str, Any] | None:
    """The choice. Raises RequestError, also where it needs a tool that is left out."""
    if choice is None:
        return None
    if choice.type != "tool":
        return _CHOICES[choice.type]
    if not choice.name:
        raise RequestError(
            "tool_choice.name: a tool_choice of type tool needs the name of one of the tools",
            parameter="tool_choice.name",
        )
    for tool in definitions or ():
        if tool.name == choice.name and _is_left_out(tool):
            raise RequestError(
                f"tool_choice.name: the tool {quoted(tool.name)} is left out here, because no "
                f"model but the vendor's knows tools of type {quoted(tool.type)}; describe it with "
                "a description and an input_schema, and let the client run it",
                parameter="tool_choice.name",
            )
    return {"type": "function", "function": {"name": choice.name}}


def held_as_asked(use: ToolUse) -> ToolUse:
    """Makes the schemas of tools optional unless a tool is strict: those that cannot be compiled
    are ignored. In Anthropic's API tools are not strict by default. (Templates do not see this.)"""
    tools = tuple(replace(tool, strict=tool.strict is True) for tool in use.rules.tools)
    return replace(use, rules=replace(use.rules, tools=tools))


def _tool(path: str, definition: ToolDefinition) -> Tool:
    if not definition.name:
        raise RequestError(f"{path}.name: a tool needs a name", parameter=f"{path}.name")
    if definition.input_schema is None:
        raise RequestError(
            f"{path}.input_schema: a tool needs the JSON schema of its input; "
            'one without fields has {"type": "object"}',
            parameter=f"{path}.input_schema",
        )
    return Tool(
        function=FunctionDefinition(
            name=definition.name,
            description=definition.description,
            parameters=_of_an_object(definition.input_schema),
            strict=definition.strict,
        )
    )


def _of_an_object(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema as the client wrote it, since the model reads it in that order of keys; with its
    type, if the client left that out."""
    return schema if "type" in schema else {"type": "object", **schema}


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
