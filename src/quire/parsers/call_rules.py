"""`CallRules`: which tools a reply may call, whether it has to, and how far arguments are held."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from quire.errors import GrammarError
from quire.structured.params import FIELD, StructuredOutputsParams
from quire.structured.source import parsed_schema

Choice = Literal["none", "auto", "required"]
StrictLevel = Literal["auto", "function", "parameter"]
"""How far arguments follow their schemas, by vLLM's names. In vLLM `auto` leaves a reply that need
not be a call without any grammar, unless a tool is strict; here names are held in every level, and:

- `auto`: schemas hold. Unless a tool is `strict: true`, keywords that cannot be compiled are left
  out. A schema that cannot be compiled at all is left out too, so that the arguments are any
  object: with `strict: false`, and without `strict` where the reply need not be a call.
- `function`: arguments are any object, but for tools with `strict: true`.
- `parameter`: schemas hold, whatever the tools say.
"""
Check = Callable[[StructuredOutputsParams], object]
"""Raises GrammarError for what cannot be compiled."""
MAX_TOOLS = 256
"""That one reply may call."""
_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool of a request."""

    name: str
    parameters: Mapping[str, Any] | None = None
    """The JSON schema of its arguments; None: it has none, or any."""
    strict: bool | None = None
    place: str = "tools"
    """Where the request has the schema, for errors: `tools[0].function.parameters`."""

    @property
    def readable(self) -> Mapping[str, Any]:
        """What arguments are read by, whether it can be compiled or not."""
        return _ANY_OBJECT if self.parameters is None else self.parameters

    @property
    def schema(self) -> Mapping[str, Any]:
        """Of its arguments, which are an object even where `parameters` does not say so. Raises
        GrammarError if they cannot be one."""
        given = self.parameters
        if given is None:
            return _ANY_OBJECT
        kind = given.get("type", "object")
        if kind != "object" and not (isinstance(kind, list) and "object" in kind):
            raise self._error("must have the type object, as the arguments of every tool", kind)
        return {**given, "type": "object"}

    def check_schema(self, schema: Mapping[str, Any], check: Check) -> None:
        """Raises GrammarError, which names the place, for a schema that cannot be compiled."""
        try:
            check(StructuredOutputsParams(json=parsed_schema("json", schema)))
        except GrammarError as error:
            message = str(error).replace(f"{FIELD}.json", self.place)
            if self.strict is not False:
                message += (
                    '; with "strict": false a tool may have any schema, which holds as far as'
                )
                message += " it can"
            raise GrammarError(message, parameter=self.place) from None

    def held_schema(
        self, level: StrictLevel, check: Check, *, must_call: bool
    ) -> Mapping[str, Any] | None:
        """What the arguments follow. None: any object, because the schema cannot be compiled and
        need not hold. Raises GrammarError where it has to hold."""
        if level == "function" and self.strict is not True:
            return _ANY_OBJECT
        is_lenient = level == "auto" and not self.strict
        try:
            schema = self.schema
            for one in (schema, {**schema, "x-guidance": {"lenient": True}}) if is_lenient else ():
                if self._works(one, check):
                    return one
            self.check_schema(schema, check)  # its parts are used as they are later
        except GrammarError:
            if is_lenient and (self.strict is False or not must_call):
                return None
            raise
        return schema

    def _works(self, schema: Mapping[str, Any], check: Check) -> bool:
        try:
            self.check_schema(schema, check)
        except GrammarError:
            return False
        return True

    def _error(self, what: str, value: object) -> GrammarError:
        return GrammarError(f"{self.place} {what}", parameter=self.place, value=value)


@dataclass(frozen=True, slots=True)
class CallRules:
    """What a request says about calls. A tool that has to be called by its name: `required`, with
    that name in `only`, and not `is_parallel`."""

    tools: Sequence[OfferedTool]
    choice: Choice = "auto"
    only: Collection[str] | None = None
    """The names that may be called; None: all."""
    is_parallel: bool = True
    """Whether a reply may have several calls."""
    level: StrictLevel = "auto"

    @property
    def allowed(self) -> list[OfferedTool]:
        """The tools that may be called."""
        return [tool for tool in self.tools if self.only is None or tool.name in self.only]

    @property
    def are_optional(self) -> bool:
        """Whether a reply may come without the schemas of some tools: see `StrictLevel`."""
        is_loose = self.choice == "auto" and self.level == "auto"
        return is_loose and any(tool.parameters and not tool.strict for tool in self.allowed)

    def schemas(self, check: Check, left_out: list[str]) -> dict[str, Mapping[str, Any]]:
        """What the arguments of each tool follow. Adds to `left_out` the places of the schemas that
        do not hold, because they cannot be compiled. Raises GrammarError."""
        if len(self.allowed) > MAX_TOOLS:
            raise GrammarError(
                f"there are {len(self.allowed)} tools, more than is allowed: at most {MAX_TOOLS}",
                parameter="tools",
            )
        held = dict[str, Mapping[str, Any]]()
        for tool in self.allowed:
            schema = tool.held_schema(self.level, check, must_call=self.choice == "required")
            if schema is None:
                left_out.append(tool.place)
            held[tool.name] = _ANY_OBJECT if schema is None else schema
        return held
