"""`ValueSchema`: the resolved schema of a value, by which it is held to a grammar and read."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from quire.errors import GrammarError
from quire.parsers.arguments.values import TEXT, Form, Types
from quire.structured.params import FIELD
from quire.structured.schemas.resolving import Flat, Resolver, types_of, with_definitions


class ValueSchema:
    """A schema of a document, resolved when it is asked for."""

    def __init__(self, schema: Any, resolver: Resolver) -> None:
        """`resolver`: of the document."""
        self.schema, self.resolver = schema, resolver

    @classmethod
    def of_tool(cls, schema: Mapping[str, Any], *, is_lenient: bool = False) -> ValueSchema:
        """The arguments of a tool. `is_lenient`: for reading, where parts that cannot be resolved
        may be anything."""
        try:
            root = with_definitions(schema)
        except RecursionError:
            if not is_lenient:
                raise
            root = dict(schema)
        return cls({"type": "object", **root}, Resolver(root, is_lenient=is_lenient))

    @property
    def is_lenient(self) -> bool:
        """Whether keywords that cannot be held are left out."""
        options = self.resolver.root.get("x-guidance")
        return isinstance(options, Mapping) and bool(options.get("lenient"))

    def inner(self, schema: Any) -> ValueSchema:
        """Another schema of the document."""
        return ValueSchema(schema, self.resolver)

    @property
    def alternatives(self) -> list[Flat]:
        """Possible values: see `resolving`."""
        return self.resolver.alternatives(self.schema)

    @cached_property
    def form(self) -> Form:
        """The types of the value; strings if the schema names none."""
        types = frozenset[str]().union(*(types_of(flat) or TEXT for flat in self.alternatives))
        values = (value for flat in self.alternatives for value in flat.get("enum", ()))
        return Form(types or TEXT, frozenset(value for value in values if isinstance(value, str)))

    @property
    def types(self) -> Types:
        """Types of `form`."""
        return self.form.types

    def of_type(self, name: str) -> list[Flat]:
        """The alternatives of a type."""
        return [flat for flat in self.alternatives if name in types_of(flat)]

    def member(self, key: str) -> ValueSchema | None:
        """The schema of a member of the object; None if the schema says nothing about it."""
        found = list[Any]()
        for flat in self.of_type("object"):
            if key in (properties := flat.get("properties", {})):
                found.append(properties[key])
                continue
            rest = [*flat.get("patternProperties", {}).values(), flat.get("additionalProperties")]
            found += [one for one in rest if isinstance(one, Mapping) and one]
        return self._any_of(found)

    def names(self) -> set[str]:
        """The names of the members that the schema names."""
        return {key for flat in self.of_type("object") for key in flat.get("properties", ())}

    def item(self, index: int) -> ValueSchema | None:
        """The schema of an item of the array; None if the schema says nothing about it."""
        found = list[Any]()
        for flat in self.of_type("array"):
            first = flat.get("prefixItems", ())
            found.append(first[index] if index < len(first) else flat.get("items"))
        return self._any_of([one for one in found if isinstance(one, Mapping)])

    def _any_of(self, schemas: list[Any]) -> ValueSchema | None:
        if not schemas:
            return None
        return self.inner(schemas[0] if len(schemas) == 1 else {"anyOf": schemas})


def members_of(flat: Flat) -> tuple[dict[str, Any], set[str], Any]:
    """The schemas of an object's members that are named, which of them are required, and the schema
    of all others, False if there are none: without `additionalProperties`, an object whose members
    are named has no others."""
    given = flat.get("properties", {})
    is_named = "properties" in flat or "patternProperties" in flat
    more = flat.get("additionalProperties", not is_named)
    required = flat.get("required", ())
    rest = True if "additionalProperties" not in flat else more
    properties = {**given, **{key: rest for key in required if key not in given}}
    return properties, set(required), more


def unwritable(keyword: str) -> GrammarError:
    """The error for a keyword that a format of calls cannot hold."""
    return GrammarError(
        f"{FIELD}.json has {keyword} in a place where this model's format of calls cannot hold it",
        parameter=f"{FIELD}.json",
    )
