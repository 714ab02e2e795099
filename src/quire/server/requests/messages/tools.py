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
    """The tools; None if there are none. Raises RequestError."""
    tools = [_tool(f"tools[{index}]", each) for index, each in enumerate(definitions or ())]
    return tools or None


def chat_tool_choice(choice: ToolChoice | None) -> str | dict[str, Any] | None:
    """The choice. Raises RequestError."""
    if choice is None:
        return None
    if choice.type != "tool":
        return _CHOICES[choice.type]
    if not choice.name:
        raise RequestError(
            "tool_choice.name: a tool_choice of type tool needs the name of one of the tools",
            parameter="tool_choice.name",
        )
    return {"type": "function", "function": {"name": choice.name}}


def held_as_asked(use: ToolUse) -> ToolUse:
    """With schemas that hold as far as they can be compiled, but for tools that are strict: in
    Anthropic's API tools are not, unless they say so. (Templates do not get to know of it.)"""
    tools = tuple(replace(tool, strict=tool.strict is True) for tool in use.rules.tools)
    return replace(use, rules=replace(use.rules, tools=tools))


def _tool(path: str, definition: ToolDefinition) -> Tool:
    if definition.type not in (None, "custom"):
        raise RequestError(
            f"{path}.type: tools of type {quoted(definition.type)} are not supported: no server of "
            "this kind runs them, and no other vendor's model knows them. Describe a tool that the "
            "client runs, with name, description and input_schema",
            parameter=f"{path}.type",
        )
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
