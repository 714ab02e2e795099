"""The tools of a response, as functions of a chat.

A custom tool takes a text: for the model it is a function with one argument, `input`. A tool of a
namespace is a function `NAMESPACE__NAME`, as in vLLM.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from quire.errors import RequestError, quoted
from quire.server.schema.chat import FunctionDefinition, Tool
from quire.server.schema.responses.request import ToolParam

CUSTOM_INPUT = "input"
"""The argument of a custom tool's function."""
_CUSTOM_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {CUSTOM_INPUT: {"type": "string"}},
    "required": [CUSTOM_INPUT],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool as the caller knows it."""

    name: str
    namespace: str | None
    is_custom: bool
    tool: Tool
    """For the chat."""


Offered = Mapping[str, OfferedTool]
"""By the name of the chat's function."""


def flat_name(namespace: str | None, name: str) -> str:
    """The name of the chat's function."""
    return name if namespace is None else f"{namespace}__{name}"


def custom_arguments(text: str) -> str:
    """The arguments of a call of a custom tool's function."""
    return msgspec.json.encode({CUSTOM_INPUT: text}).decode()


def custom_input(arguments: str) -> str:
    """The text in the arguments of a call of a custom tool; arguments without one are the text."""
    try:
        return msgspec.json.decode(arguments, type=_CustomArguments).input
    except msgspec.DecodeError:
        return arguments


class _CustomArguments(msgspec.Struct):
    input: str


def offered_tools(tools: Sequence[ToolParam]) -> Offered:
    """The tools of a request. Raises RequestError for a kind that does not exist here."""
    offered: dict[str, OfferedTool] = {}
    for each in _each(tools, None):
        flat = each.tool.function.name
        if flat in offered:
            raise _wrong(f"two tools have the name {quoted(flat)}; rename one of them")
        offered[flat] = each
    return offered


def chosen_tools(
    offered: Offered, choice: str | dict[str, Any] | None
) -> tuple[list[Tool] | None, str | dict[str, Any] | None]:
    """`tools` and `tool_choice` of the chat. Raises RequestError."""
    tools = [each.tool for each in offered.values()] or None
    if not isinstance(choice, dict):
        if choice not in (None, "none", "auto", "required"):
            raise _wrong_choice(f"got {quoted(choice)}")
        if choice == "required" and not offered:
            raise _wrong_choice("there are no `tools`, so that none can be required")
        return tools, choice if offered else None
    kind = choice.get("type")
    if kind in ("function", "custom"):
        name = _name_of(choice, offered)
        return tools, {"type": "function", "function": {"name": name}}
    if kind == "allowed_tools":
        return tools, _allowed(offered, choice)
    raise _wrong_choice(f"its type is {quoted(kind)}")


def _allowed(offered: Offered, choice: dict[str, Any]) -> dict[str, Any]:
    """A choice among some of the tools, as a chat has it."""
    allowed = choice.get("tools")
    if not isinstance(allowed, list) or not allowed:
        raise _wrong_choice("allowed_tools needs `tools`, a list with names")
    named = [{"type": "function", "function": {"name": _name_of(one, offered)}} for one in allowed]
    return {
        "type": "allowed_tools",
        "allowed_tools": {"mode": choice.get("mode", "auto"), "tools": named},
    }


def _name_of(named: object, offered: Offered) -> str:
    """The chat's name of a tool that a choice names."""
    name = named.get("name") if isinstance(named, dict) else None
    if isinstance(name, str):
        namespace = named.get("namespace") if isinstance(named, dict) else None
        flat = flat_name(namespace, name) if isinstance(namespace, str) else name
        if flat in offered:
            return flat
        same = [flat for flat, each in offered.items() if each.name == name]
        if len(same) == 1:
            return same[0]
    raise _wrong_choice(f"no tool has the name {quoted(name)}")


def _each(tools: Iterable[ToolParam], namespace: str | None) -> Iterator[OfferedTool]:
    for tool in tools:
        if tool.type == "namespace" and namespace is None:
            if not tool.name or not tool.tools:
                raise _wrong("a namespace needs a `name` and `tools`")
            yield from _each(tool.tools, tool.name)
        elif tool.type in ("function", "custom"):
            yield _offered(tool, namespace)
        else:
            raise _wrong(
                f"tools of type {quoted(tool.type)} do not exist here; the types are function, "
                "custom, and namespace around them: the caller runs them"
            )


def _offered(tool: ToolParam, namespace: str | None) -> OfferedTool:
    if not tool.name:
        raise _wrong(f"a tool of type {tool.type} needs a `name`")
    is_custom = tool.type == "custom"
    if is_custom and tool.format not in (None, {"type": "text"}):
        raise _wrong(
            f"the custom tool {quoted(tool.name)} has a format other than text; only free text "
            "works: leave `format` out"
        )
    function = FunctionDefinition(
        name=flat_name(namespace, tool.name),
        description=tool.description,
        parameters=_CUSTOM_SCHEMA if is_custom else tool.parameters,
        strict=tool.strict,
    )
    return OfferedTool(tool.name, namespace, is_custom, Tool(function=function))


def _wrong(message: str) -> RequestError:
    return RequestError(message, parameter="tools")


def _wrong_choice(reason: str) -> RequestError:
    return RequestError(
        f"tool_choice: {reason}. It is none, auto, required, "
        '{"type": "function", "name": ...} or {"type": "allowed_tools", "mode": ..., '
        '"tools": [...]}, with names of `tools`',
        parameter="tool_choice",
    )
