"""The tools of a response, as functions of a conversation.

A custom tool takes a text: for the model it is a function with one argument, `input`. A tool of a
namespace is a function `NAMESPACE__NAME`, as in vLLM.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from quire.errors import RequestError, quoted
from quire.server.conversation.conversation import ToolChoice, ToolUse, tool_use
from quire.server.conversation.message import FunctionDefinition, Tool
from quire.server.requests.fields import Int64, SharedFields


class ToolParam(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A tool: a `function`, a `custom` tool that takes a text, or a `namespace` of tools."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    format: dict[str, Any] | None = None
    """Input format of a custom tool: `{"type": "text"}`."""
    tools: list[ToolParam] | None = None
    """Tools inside a namespace tool."""


class ToolFields(SharedFields, kw_only=True, forbid_unknown_fields=True):
    """The fields of a request that describe its tools."""

    tools: list[ToolParam] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = True
    max_tool_calls: Int64 | None = None
    """Accepted: it limits tools that run in the server, and there are none."""

    def repeated_fields(self) -> dict[str, Any]:
        """The choice as the response repeats it."""
        return {
            "tool_choice": self.tool_choice or "auto",
            "parallel_tool_calls": self.parallel_tool_calls is not False,
        }


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
    """The tool as the model is shown it."""


Offered = Mapping[str, OfferedTool]
"""Tools by the names of the functions."""


def flat_name(namespace: str | None, name: str) -> str:
    """The name of the function."""
    return name if namespace is None else f"{namespace}__{name}"


def custom_arguments(text: str) -> str:
    """The arguments of a call of a custom tool's function."""
    return msgspec.json.encode({CUSTOM_INPUT: text}).decode()


def shown_tools(request: ToolFields) -> tuple[list[ToolParam] | None, list[str]]:
    """The tools that the model is shown, and names for those that are left out.

    The server runs no tools, and does not know what a grammar of a custom tool means, so it leaves
    such tools out. Raises RequestError if the request's choice names one of them.
    """
    choice, left_out = request.tool_choice, list[ToolParam]()
    shown = [one for tool in request.tools or () for one in _shown(tool, left_out)]
    for tool in left_out:
        if any(
            tool.type == named.get("type") and tool.name == named.get("name", tool.name)
            for named in _named_by(choice)
        ):
            raise _wrong_choice(
                f"the tool {quoted(tool.name or tool.type)} is left out here, because the server "
                "runs no tools of its own and takes custom tools with free text only"
            )
    if left_out and not shown and choice == "required":
        raise _wrong_choice("all of `tools` are left out here, so that none can be required")
    return shown or None, [f"tools.{tool.name or tool.type}" for tool in left_out]


def _shown(
    tool: ToolParam, left_out: list[ToolParam], *, is_inner: bool = False
) -> list[ToolParam]:
    """The tool; nothing if it is left out; or a namespace without the tools that are left out."""
    if tool.type == "namespace" and tool.tools and not is_inner:
        inner = [one for each in tool.tools for one in _shown(each, left_out, is_inner=True)]
        return [msgspec.structs.replace(tool, tools=inner)] if inner else []
    is_text = tool.format in (None, {"type": "text"})
    if tool.type in ("function", "namespace") or (tool.type == "custom" and is_text):
        return [tool]
    left_out.append(tool)
    return []


def _named_by(choice: str | dict[str, Any] | None) -> list[dict[str, Any]]:
    """The tools that a choice names."""
    if not isinstance(choice, dict):
        return []
    allowed = choice.get("tools") if choice.get("type") == "allowed_tools" else None
    each = allowed if isinstance(allowed, list) else [choice]
    return [one for one in each if isinstance(one, dict)]


def offered_tools(tools: Sequence[ToolParam]) -> Offered:
    """The tools of a request. Raises RequestError for one that is incomplete."""
    offered: dict[str, OfferedTool] = {}
    for each in _each(tools, None):
        flat = each.tool.function.name
        if flat in offered:
            raise _wrong(f"two tools have the name {quoted(flat)}; rename one of them")
        offered[flat] = each
    return offered


def tools_of_response(offered: Offered, request: ToolFields, *, has_reply: bool = True) -> ToolUse:
    """`has_reply`: a reply is asked for. Raises RequestError."""
    choice = _choice(offered, request.tool_choice)
    if not has_reply:
        return ToolUse()
    return tool_use(
        [each.tool for each in offered.values()],
        choice,
        is_parallel=request.parallel_tool_calls is not False,
    )


def _choice(offered: Offered, choice: str | dict[str, Any] | None) -> ToolChoice:
    if not isinstance(choice, dict):
        if choice not in (None, "none", "auto", "required"):
            raise _wrong_choice(f"got {quoted(choice)}")
        if choice == "required" and not offered:
            raise _wrong_choice("Tool choice 'required' must be specified with 'tools' parameter")
        return ToolChoice(choice or "auto")  # type: ignore[arg-type]
    kind = choice.get("type")
    if kind in ("function", "custom"):
        return ToolChoice.of_one(_name_of(choice, offered))
    if kind == "allowed_tools":
        return _allowed(offered, choice)
    raise _wrong_choice(f"its type is {quoted(kind)}")


def _allowed(offered: Offered, choice: dict[str, Any]) -> ToolChoice:
    """A choice among some of the tools."""
    allowed, mode = choice.get("tools"), choice.get("mode", "auto")
    if not isinstance(allowed, list) or not allowed:
        raise _wrong_choice("allowed_tools needs `tools`, a list with names")
    return ToolChoice(mode, [_name_of(one, offered) for one in allowed])


def _name_of(named: object, offered: Offered) -> str:
    """The function's name of a tool that a choice names."""
    name = named.get("name") if isinstance(named, dict) else None
    if isinstance(name, str):
        namespace = named.get("namespace") if isinstance(named, dict) else None
        flat = flat_name(namespace, name) if isinstance(namespace, str) else name
        if flat in offered:
            return flat
        same = [flat for flat, each in offered.items() if each.name == name]
        if len(same) == 1:
            return same[0]
    raise _wrong_choice(
        "Tool choice 'function' not found in 'tools' parameter: no tool has the name "
        f"{quoted(name)}"
    )


def _each(tools: Iterable[ToolParam], namespace: str | None) -> Iterator[OfferedTool]:
    for tool in tools:
        if tool.type == "namespace" and namespace is None:
            if not tool.name or not tool.tools:
                raise _wrong("a namespace needs a `name` and `tools`")
            yield from _each(tool.tools, tool.name)
        elif tool.type in ("function", "custom"):
            yield _offered(tool, namespace)
        else:
            raise _wrong("a namespace cannot be in a namespace: put its `tools` into the outer one")


def _offered(tool: ToolParam, namespace: str | None) -> OfferedTool:
    if not tool.name:
        raise _wrong(f"a tool of type {tool.type} needs a `name`")
    is_custom = tool.type == "custom"
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
