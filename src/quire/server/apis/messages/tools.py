"""Tools and the choice among them, as a chat request has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import msgspec

from quire.errors import RequestError, quoted
from quire.server.apis.chat.tools import FunctionDefinition, Tool, ToolUse


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
