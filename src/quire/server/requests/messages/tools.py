"""Tools and the choice among them, as a chat request has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from quire.errors import RequestError, quoted
from quire.server.requests.chats.tool_use import ToolUse
from quire.server.schema.chat import FunctionDefinition, Tool
from quire.server.schema.messages import ToolChoice, ToolDefinition

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def chat_tools(definitions: Sequence[ToolDefinition] | None) -> list[Tool] | None:
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


def chat_tool_choice(
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
    """With schemas that hold as far as they can be compiled, but for tools that are strict: in
    Anthropic's API tools are not, unless they say so. (Templates do not get to know of it.)"""
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
