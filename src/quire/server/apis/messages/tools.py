"""The tools of a request in Anthropic's form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from quire.errors import RequestError, quoted
from quire.server.apis.messages.schema import ToolChoice as AskedChoice
from quire.server.apis.messages.schema import ToolDefinition, ToolFields
from quire.server.conversation.messages import FunctionDefinition, Tool
from quire.server.conversation.tools import ToolChoice, ToolUse, tool_use

if TYPE_CHECKING:
    from quire.parsers.call_rules import StrictLevel

_CHOICES = {
    "auto": ToolChoice("auto"), "any": ToolChoice("required"), "none": ToolChoice("none"),
}  # fmt: skip


def shown_tools(request: ToolFields) -> tuple[list[Tool], dict[str, str]]:
    """The tools that the model is shown, and the places of their names and schemas in the body by
    those in a conversation. Raises RequestError."""
    tools, names = list[Tool](), dict[str, str]()
    for index, each in enumerate(request.tools or ()):
        if not _is_left_out(each):
            own, place = f"tools[{len(tools)}].function", f"tools[{index}]"
            names |= {f"{own}.name": f"{place}.name", f"{own}.parameters": f"{place}.input_schema"}
            tools.append(_tool(place, each))
    return tools, names


def tools_of_message(request: ToolFields, tools: Sequence[Tool], level: StrictLevel) -> ToolUse:
    """Makes the schemas of tools optional unless a tool is strict: those that cannot be compiled
    are ignored. In Anthropic's API tools are not strict by default. (Templates do not see this.)
    Raises RequestError."""
    asked = request.tool_choice
    is_parallel = asked is None or not asked.disable_parallel_tool_use
    use = tool_use(tools, _choice(asked, request.tools), level, is_parallel=is_parallel)
    held = tuple(replace(tool, strict=tool.strict is True) for tool in use.rules.tools)
    return replace(use, rules=replace(use.rules, tools=held))


def names_left_out(definitions: Sequence[ToolDefinition] | None) -> list[str]:
    """Names for the tools that are left out: those of types that only the vendor's models know."""
    return [f"tools.{tool.name or tool.type}" for tool in definitions or () if _is_left_out(tool)]


def _is_left_out(tool: ToolDefinition) -> bool:
    return tool.type not in (None, "custom")


def _choice(choice: AskedChoice | None, definitions: Sequence[ToolDefinition] | None) -> ToolChoice:
    """The choice. Raises RequestError, also where it needs a tool that is left out."""
    if choice is None:
        return ToolChoice()
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
    return ToolChoice.of_one(choice.name)


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
