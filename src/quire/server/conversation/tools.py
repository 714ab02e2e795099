"""`ToolUse`: which tools the reply to a conversation may call, and whether it has to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from quire.errors import RequestError, quoted
from quire.server.conversation.messages import Tool

if TYPE_CHECKING:
    from quire.parsers.call_rules import CallRules


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Whether the reply calls tools, and which."""

    mode: Literal["auto", "none", "required"] = "auto"
    only: Sequence[str] | None = None
    """Names of the tools that may be called; None: all of them."""
    is_named: bool = False
    """The request names the one tool to call."""

    @classmethod
    def of_one(cls, name: str) -> ToolChoice:
        """The reply calls this tool."""
        return cls("required", [name], is_named=True)


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools that the reply may or must call."""

    rules: CallRules = field(default_factory=lambda: _rules(tools=(), choice="none"))
    is_named: bool = False
    """The request names the one tool to call. Then `finish_reason` is `stop`, as in OpenAI's
    API."""
    is_legacy: bool = False
    """The request uses `functions`: the reply has a `function_call`."""
    schemas: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The JSON schema of the arguments of each tool that may be called."""

    @property
    def is_searched(self) -> bool:
        """Whether the reply is searched for calls."""
        return self.rules.choice != "none"


def _rules(**fields: Any) -> CallRules:
    from quire.parsers.call_rules import CallRules  # its chain of imports is long

    return CallRules(**fields)


def tool_use(
    tools: Sequence[Tool] | None,
    choice: ToolChoice,
    *,
    is_parallel: bool = True,
    place: str = "tools[{}].function",
) -> ToolUse:
    """`is_parallel`: a reply may have several calls. `place`: path of a tool in the request, with
    its index. Raises RequestError for what is invalid, or does not fit together."""
    if choice.mode not in ("auto", "none", "required"):
        raise RequestError(
            f"tool_choice.allowed_tools.mode must be auto or required, got {quoted(choice.mode)}",
            parameter="tool_choice",
        )
    if not tools:
        if choice.mode == "required":
            raise RequestError(_NO_TOOLS, parameter="tool_choice")
        return ToolUse()
    from quire.parsers.call_rules import OfferedTool

    offered = [tool.function for tool in tools]
    names = _names([one.name for one in offered])
    for name in choice.only or ():
        if name not in names:
            raise RequestError(
                "The tool specified in `tool_choice` does not match any of the specified `tools`",
                parameter="tool_choice",
                value=name,
            )
    only = frozenset(names if choice.only is None else choice.only)
    rules = _rules(
        tools=tuple(
            OfferedTool(one.name, one.parameters, one.strict, f"{place.format(index)}.parameters")
            for index, one in enumerate(offered)
        ),
        choice=choice.mode,
        only=frozenset() if choice.mode == "none" else only,
        is_parallel=is_parallel and not choice.is_named,
    )
    schemas = {tool.name: tool.readable for tool in rules.allowed}
    return ToolUse(rules, choice.is_named, schemas=schemas)


_NO_TOOLS = "When using `tool_choice`, `tools` must be set."


def _names(given: Sequence[str]) -> dict[str, None]:
    names: dict[str, None] = {}
    for index, name in enumerate(given):
        if not name:
            raise RequestError(
                f"tools[{index}].function.name must not be empty",
                parameter=f"tools[{index}].function.name",
            )
        if name in names:
            raise RequestError(
                f"tools[{index}].function.name {quoted(name)} is the name of another tool too",
                parameter=f"tools[{index}].function.name",
            )
        names[name] = None
    return names
