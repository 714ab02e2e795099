"""`CallRules`: which tools a reply may call, whether it must, and how strictly schemas hold."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from quire.errors import GrammarError, RequestError, quoted
from quire.structured.params import FIELD, StructuredOutputsParams
from quire.structured.source import parsed_schema

Choice = Literal["none", "auto", "required"]
StrictLevel = Literal["auto", "function", "parameter"]
"""Strictness of arguments with respect to their schemas, by vLLM's names. In vLLM, `auto` sets no
grammar for a reply that need not be a call, unless a tool is strict. Here, tool names are enforced
at every level, and:

- `auto`: schemas hold. Unless a tool is `strict: true`, keywords that cannot be compiled, or that
  the format of calls cannot hold, are left out. If a schema cannot be compiled or held at all, the
  arguments may be any object; this applies only with `strict: false`, or without `strict` if the
  reply need not be a call.
- `function`: arguments may be any object, except for tools with `strict: true`.
- `parameter`: schemas hold for every tool.
"""
Check = Callable[[StructuredOutputsParams], object]
"""Raises GrammarError for a grammar that cannot be compiled."""
CheckTool = Callable[[str, Mapping[str, Any]], object]
"""Raises GrammarError for a tool's name and schema that the format of calls cannot hold."""
MAX_TOOLS = 256
"""Maximum number of tools that one reply may call."""
_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool of a request."""

    name: str
    parameters: Mapping[str, Any] | None = None
    """JSON schema of the arguments; None: the tool has no arguments or accepts any."""
    strict: bool | None = None
    place: str = "tools"
    """Path of the schema in the request, for errors: `tools[0].function.parameters`."""

    @property
    def readable(self) -> Mapping[str, Any]:
        """The schema used to read arguments, even if it cannot be compiled."""
        return _ANY_OBJECT if self.parameters is None else self.parameters

    @property
    def schema(self) -> Mapping[str, Any]:
        """The schema of the arguments, with the type object added if `parameters` lacks it. Raises
        GrammarError if another type is given."""
        given = self.parameters
        if given is None:
            return _ANY_OBJECT
        kind = given.get("type", "object")
        if kind != "object" and not (isinstance(kind, list) and "object" in kind):
            raise self._error("must have the type object, because arguments are an object", kind)
        return {**given, "type": "object"}

    def check_schema(
        self, schema: Mapping[str, Any], check: Check, check_tool: CheckTool | None = None
    ) -> None:
        """Raises GrammarError, naming the field, if the schema cannot be compiled or held."""
        try:
            check(StructuredOutputsParams(json=parsed_schema("json", schema)))
            if check_tool is not None:
                check_tool(self.name, schema)
        except GrammarError as error:
            message = str(error).replace(f"{FIELD}.json", self.place)
            if self.strict is not False:
                message += '; with "strict": false, parts that cannot be compiled are ignored'
            raise GrammarError(message, parameter=self.place) from None

    def held_schema(
        self,
        level: StrictLevel,
        check: Check,
        check_tool: CheckTool | None = None,
        *,
        must_call: bool,
    ) -> Mapping[str, Any] | None:
        """The schema that the arguments must follow. None: any object, because the schema cannot be
        compiled or held and need not hold. Raises GrammarError if it must hold."""
        if level == "function" and self.strict is not True:
            return _ANY_OBJECT
        is_lenient = level == "auto" and not self.strict
        try:
            schema = self.schema
            for one in (schema, {**schema, "x-guidance": {"lenient": True}}) if is_lenient else ():
                if self._works(one, check, check_tool):
                    return one
            self.check_schema(schema, check, check_tool)  # raises the error of the unchanged schema
        except GrammarError:
            if is_lenient and (self.strict is False or not must_call):
                return None
            raise
        return schema

    def _works(self, schema: Mapping[str, Any], check: Check, check_tool: CheckTool | None) -> bool:
        try:
            self.check_schema(schema, check, check_tool)
        except GrammarError:
            return False
        return True

    def _error(self, what: str, value: object) -> GrammarError:
        return GrammarError(f"{self.place} {what}", parameter=self.place, value=value)


@dataclass(frozen=True, slots=True)
class CallRules:
    """A request's rules for calls. To force one tool by name, use `required`, that name in `only`,
    and `is_parallel` false."""

    tools: Sequence[OfferedTool]
    choice: Choice = "auto"
    only: Collection[str] | None = None
    """Names of tools that may be called; None: all."""
    is_parallel: bool = True
    """Whether a reply may contain several calls."""
    level: StrictLevel = "auto"

    @property
    def allowed(self) -> list[OfferedTool]:
        """The tools that may be called."""
        return [tool for tool in self.tools if self.only is None or tool.name in self.only]

    @property
    def are_optional(self) -> bool:
        """Whether a reply may ignore the schemas of some tools: see `StrictLevel`."""
        is_loose = self.choice == "auto" and self.level == "auto"
        return is_loose and any(tool.parameters and not tool.strict for tool in self.allowed)

    def schemas(
        self, check: Check, left_out: list[str], check_tool: CheckTool | None = None
    ) -> dict[str, Mapping[str, Any]]:
        """The schema of the arguments of each tool. Adds to `left_out` the paths of schemas that
        are ignored because they cannot be compiled or held. Raises GrammarError."""
        if len(self.allowed) > MAX_TOOLS:
            raise GrammarError(
                f"at most {MAX_TOOLS} tools may be offered, not {len(self.allowed)}",
                parameter="tools",
            )
        held = dict[str, Mapping[str, Any]]()
        for tool in self.allowed:
            must_call = self.choice == "required"
            schema = tool.held_schema(self.level, check, check_tool, must_call=must_call)
            if schema is None:
                left_out.append(tool.place)
            held[tool.name] = _ANY_OBJECT if schema is None else schema
        return held


class Function(Protocol):
    """A function that a request offers."""

    name: str
    parameters: dict[str, Any] | None
    strict: bool | None


def rules_of(
    functions: Sequence[Function],
    choice: Choice,
    only: Sequence[str] | None,
    *,
    is_parallel: bool,
    place: str,
) -> CallRules:
    """The rules for calls of these functions. `only`: names of those that may be called; None: all.
    `place`: path of a function in the request, with its index. Raises RequestError."""
    names = _names([one.name for one in functions])
    for name in only or ():
        if name not in names:
            raise RequestError(
                "The tool specified in `tool_choice` does not match any of the specified `tools`",
                parameter="tool_choice",
                value=name,
            )
    callable_names = frozenset(names if only is None else only)
    return CallRules(
        tools=tuple(
            OfferedTool(one.name, one.parameters, one.strict, f"{place.format(index)}.parameters")
            for index, one in enumerate(functions)
        ),
        choice=choice,
        only=frozenset() if choice == "none" else callable_names,
        is_parallel=is_parallel,
    )


def _names(given: Sequence[str]) -> dict[str, None]:
    names: dict[str, None] = {}
    for index, name in enumerate(given):
        field = f"tools[{index}].function.name"
        if not name:
            raise RequestError(f"{field} must not be empty", parameter=field)
        if name in names:
            raise RequestError(
                f"{field} {quoted(name)} is the name of another tool too", parameter=field
            )
        names[name] = None
    return names
