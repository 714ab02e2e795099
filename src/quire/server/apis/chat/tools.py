"""`tool_use`: which tools the reply to a chat may call, and whether it has to.

Checks `tools` and `tool_choice`, and OpenAI's earlier `functions` and `function_call`, which are
the same in other words. Called by the routes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from quire.errors import RequestError, quoted
from quire.server.generation.request_fields import GenerationFields

if TYPE_CHECKING:
    from quire.parsers.call_rules import CallRules, Choice, StrictLevel


class FunctionDefinition(
    msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """A function that the model may call."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A tool offered to the model."""

    type: Literal["function"] = "function"
    function: FunctionDefinition

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """For programs that use the class as a type of pydantic, as they can use vLLM's."""
        del source, handler
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(
            lambda given: msgspec.convert(given, cls)
        )


class ToolFields(GenerationFields, kw_only=True):
    """The fields of a chat that describe its tools."""

    tools: list[Tool] | None = None
    """Shown to the model, which may call them."""
    tool_choice: str | dict[str, Any] | None = None
    """`auto`, the default: the reply may call tools; `none`; `required`: the reply consists of
    calls; or one tool that it calls, or some that it may call."""
    parallel_tool_calls: bool | None = True
    """Whether a reply may have several calls."""
    functions: list[FunctionDefinition] | None = None
    """OpenAI's earlier name of `tools`; a reply has one `function_call`."""
    function_call: str | dict[str, Any] | None = None
    """The same for `tool_choice`."""

    @property
    def forbids_calls(self) -> bool:
        """Whether the reply must not call the tools."""
        return self.tool_choice == "none"


_USAGE = 'Correct usage: `{"type": "function", "function": {"name": "my_function"}}`'
_NO_TOOLS = "When using `tool_choice`, `tools` must be set."


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


def tool_use(request: ToolFields, level: StrictLevel = "auto") -> ToolUse:
    """`level`: how far arguments follow their schemas. Raises RequestError for what is invalid, or
    does not fit together."""
    if not request.functions and request.function_call is None:
        return _tool_use(request.tools, request.tool_choice, request.parallel_tool_calls, level)
    if request.tools is not None or request.tool_choice is not None:
        raise RequestError(
            "functions and function_call are the earlier names of tools and tool_choice; use "
            "either, not both",
            parameter="functions",
        )
    choice = request.function_call
    if isinstance(choice, Mapping):
        choice = {"type": "function", "function": dict(choice)}
    tools = None
    if request.functions:
        tools = [Tool(function=function) for function in request.functions]
    try:
        use = _tool_use(tools, choice, False, level, "functions[{}]")
    except RequestError as error:
        names = {"tool_choice": "function_call", "tools": "functions"}
        name = (error.parameter or "").split(".")[0]
        message = str(error).replace("tool_choice", "function_call").replace("tools", "functions")
        raise RequestError(message, parameter=names.get(name, name), value=error.value) from None
    return replace(use, is_legacy=True)


def _tool_use(
    tools: list[Tool] | None,
    choice: Any,
    is_parallel: bool | None,
    level: StrictLevel,
    place: str = "tools[{}].function",
) -> ToolUse:
    """`place`: path of a function in the request, with its index."""
    if tools is not None and not tools:
        raise RequestError("`tools` must not be an empty array; leave it out", parameter="tools")
    if not tools:
        if choice not in (None, "none", "auto"):
            raise RequestError(_NO_TOOLS, parameter="tool_choice")
        return ToolUse()
    offered = [tool.function for tool in tools]
    mode, names, is_named = _choice(choice, _names(offered))
    from quire.parsers.call_rules import OfferedTool

    rules = _rules(
        tools=tuple(
            OfferedTool(one.name, one.parameters, one.strict, f"{place.format(index)}.parameters")
            for index, one in enumerate(offered)
        ),
        choice=mode,
        only=frozenset(names),
        is_parallel=is_parallel is not False and not is_named,
        level=level,
    )
    return ToolUse(rules, is_named, schemas={tool.name: tool.readable for tool in rules.allowed})


def _names(offered: Iterable[FunctionDefinition]) -> tuple[str, ...]:
    names: dict[str, None] = {}
    for index, one in enumerate(offered):
        if not one.name:
            raise RequestError(
                f"tools[{index}].function.name must not be empty",
                parameter=f"tools[{index}].function.name",
            )
        if one.name in names:
            raise RequestError(
                f"tools[{index}].function.name {quoted(one.name)} is the name of another tool too",
                parameter=f"tools[{index}].function.name",
            )
        names[one.name] = None
    return tuple(names)


def _choice(choice: Any, names: tuple[str, ...]) -> tuple[Choice, tuple[str, ...], bool]:
    """The mode, the tools that may be called, and whether the request names a single tool."""
    if choice is None or choice == "auto":
        return "auto", names, False
    if choice == "none":
        return "none", (), False
    if choice == "required":
        return "required", names, False
    if not isinstance(choice, Mapping):
        raise RequestError(
            f"Invalid value for `tool_choice`: {quoted(choice)}! Only named tools, "
            '"none", "auto" or "required" are supported.',
            parameter="tool_choice",
        )
    if choice.get("type") == "allowed_tools":
        return _allowed(choice, names)
    return "required", (_named(choice, names),), True


def _allowed(
    choice: Mapping[str, Any], names: tuple[str, ...]
) -> tuple[Choice, tuple[str, ...], bool]:
    """OpenAI's `allowed_tools`: a choice among some of the tools."""
    allowed = choice.get("allowed_tools", choice)
    mode, given = allowed.get("mode", "auto"), allowed.get("tools")
    if mode not in ("auto", "required"):
        raise RequestError(
            f"tool_choice.allowed_tools.mode must be auto or required, got {quoted(mode)}",
            parameter="tool_choice",
        )
    if not isinstance(given, list) or not given:
        raise RequestError(
            "tool_choice.allowed_tools.tools must be a list of tools that is not empty",
            parameter="tool_choice",
        )
    wanted = {_named(one if isinstance(one, Mapping) else {}, names) for one in given}
    return mode, tuple(name for name in names if name in wanted), False


def _named(choice: Mapping[str, Any], names: tuple[str, ...]) -> str:
    function = choice.get("function")
    if not isinstance(function, Mapping):
        raise RequestError(
            f"Invalid value for `function`: `{quoted(function)}` in `tool_choice`! {_USAGE}",
            parameter="tool_choice.function",
        )
    if "name" not in function:
        raise RequestError(
            f"Expected field `name` in `function` in `tool_choice`! {_USAGE}",
            parameter="tool_choice.function.name",
        )
    name = function["name"]
    if not isinstance(name, str) or not name:
        raise RequestError(
            f"Invalid `name` in `function`: `{quoted(name)}` in `tool_choice`! {_USAGE}",
            parameter="tool_choice.function.name",
        )
    if name not in names:
        raise RequestError(
            "The tool specified in `tool_choice` does not match any of the specified `tools`",
            parameter="tool_choice",
            value=name,
        )
    return name
