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

- `auto`: schemas hold. Unless a tool is `strict: true`, keywords that cannot be compiled say
  nothing; with `strict: false` a schema that does not work at all stands for any object.
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

    def held_schema(self, level: StrictLevel, check: Check) -> Mapping[str, Any]:
        """What the arguments follow. Raises GrammarError."""
        if level == "function" and self.strict is not True:
            return _ANY_OBJECT
        schema = self.schema
        is_lenient = level == "auto" and not self.strict
        for one in (schema, {**schema, "x-guidance": {"lenient": True}}) if is_lenient else ():
            try:
                self.check_schema(one, check)
            except GrammarError:
                continue
            return one
        if is_lenient and self.strict is False:
            return _ANY_OBJECT
        self.check_schema(schema, check)  # what is written of it later takes its values as they are
        return schema

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

    def schemas(self, check: Check) -> dict[str, Mapping[str, Any]]:
        """What the arguments of each tool follow. Raises GrammarError."""
        if len(self.allowed) > MAX_TOOLS:
            raise GrammarError(
                f"there are {len(self.allowed)} tools, more than is allowed: at most {MAX_TOOLS}",
                parameter="tools",
            )
        return {tool.name: tool.held_schema(self.level, check) for tool in self.allowed}
