"""Parts of structural tags for calls whose arguments are written one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from quire.parsers.arguments.reading import ValueEnds
from quire.parsers.arguments.schemas import ValueSchema, members_of, unwritable
from quire.parsers.arguments.strings import SCALARS, is_stepped, string_parts
from quire.parsers.tool_format import Schemas
from quire.structured.schemas.merging import objects_within
from quire.structured.schemas.patterns import rust_pattern, whole_pattern
from quire.structured.schemas.places import DEFINITIONS, type_of
from quire.structured.schemas.resolving import PROPERTIES, Flat, types_of
from quire.structured.source import regex_body
from quire.structured.tags.parts import (
    Part,
    const,
    either,
    json_schema,
    members,
    separated,
    sequence,
    tag,
)
from quire.structured.tags.texts import expression

ANY_KEY = "[A-Za-z0-9_.-]{1,64}"
IDENTIFIER = "[A-Za-z_][A-Za-z0-9_]{0,63}"


@dataclass(frozen=True)
class Layout:
    """The layout of calls in a model's template: the texts around each part.

    `{name}` stands for the tool, `{key}` for the argument, `{type}` for its type.
    """

    call: tuple[str, str]
    text: tuple[str, str]
    """Texts around a string argument."""
    value: str | None = None
    """Text before an argument of any other type, written as JSON; None: the same as of `text`."""
    around: tuple[str, str] | None = None
    """Texts around the whole list of calls."""
    separator: str = "\n"
    """Text between calls. What follows the last call must not begin with it."""
    ends: ValueEnds | None = None
    """The texts that end a value."""
    is_trimmed: bool = False
    """Whether white space around a value is not read."""

    @property
    def head(self) -> str:
        """The text before the name of an argument."""
        return self.text[0].partition("{key}")[0]

    def tail(self, kind: str) -> str:
        """The text between the name of an argument and its value of a type."""
        before = self.text[0] if kind == "string" or self.value is None else self.value
        name = "number" if kind == "integer" else kind
        return before.partition("{key}")[2].replace("{type}", name)


def calls_part(tools: Schemas, layout: Layout, *, is_parallel: bool) -> Part:
    """One call of these tools, or one or more if `is_parallel`."""
    before, after = layout.call
    calls = separated(
        [
            tag(before.replace("{name}", name), arguments_part(schema, layout), after)
            for name, schema in tools.items()
        ],
        layout.separator if is_parallel else None,
    )
    return tag(layout.around[0], calls, layout.around[1]) if layout.around else calls


def arguments_part(schema: Mapping[str, Any], layout: Layout) -> Part:
    """The arguments in the order of the schema. Arguments that are not required may be missing."""
    value = ValueSchema.of_tool(schema)
    excluded = [] if layout.ends is None else layout.ends.of_names(sorted(value.names())).excluded
    has_types = "{type}" in layout.text[0]
    is_apart = has_types or layout.value is not None

    def argument(key: Key, value: ValueSchema) -> Part | None:
        trimmed = layout.is_trimmed
        texts = string_parts(
            value, excluded, is_apart=is_apart, is_trimmed=trimmed, is_shared=key.is_shared
        )
        ways = [("string", text) for text in texts]
        is_mixed = not is_apart and any(text["type"] == "any_text" for text in texts)
        ways += json_parts(value, scalars=not is_mixed, by_type=has_types)
        by_tail: dict[str, list[Part]] = {}
        for kind, part in ways:
            by_tail.setdefault(layout.tail(kind), []).append(part)
        return any_of(sequence(key.part(tail), any_of(parts)) for tail, parts in by_tail.items())

    after, head = layout.text[1], layout.head
    return object_part(value, argument, after + head, begin=head, end=after)


@dataclass(frozen=True)
class Key:
    """The name of a member."""

    name: str | None
    """None: one that the schema does not give."""
    form: Mapping[str, Any] | None = None
    """Such names."""
    is_shared: bool = False
    """Whether the object may have other members in the same place."""

    def part(self, tail: str, write: Callable[[str], str] = str) -> Part:
        """The name and the text after it. `write` writes a name that the schema gives."""
        if self.name is not None:
            return const(write(self.name) + tail)
        return tag("", {"type": "any_text", "forms": [self.form]}, tail)


Member = Callable[[Key, ValueSchema], Part | None]
"""Writes a member; None if no value is valid."""


def object_part(
    value: ValueSchema,
    member: Member,
    separator: str,
    *,
    begin: str = "",
    end: str = "",
    key: str = ANY_KEY,
    flats: list[Flat] | None = None,
) -> Part:
    """The members of an object of a schema, or of these alternatives of it, in the order of the
    schema. `key`: the expression of names that the schema does not give."""
    found = []
    every = value.of_type("object")
    shared = len(every) > 1
    for flat in every if flats is None else flats:
        _check_object(flat, is_lenient=value.is_lenient)
        properties, required, _ = members_of(flat)
        if not all(value.inner(properties[name]).alternatives for name in required):
            continue
        parts = {
            name: member(Key(name, is_shared=shared), value.inner(of))
            for name, of in properties.items()
        }
        elements = {name: part for name, part in parts.items() if part is not None}
        optional_at = [i for i, name in enumerate(elements) if name not in required]
        more = any_of(
            part
            for form, schema in _others(flat, key)
            if (part := member(Key(None, form, shared), value.inner(schema))) is not None
        )
        if not elements and more is None:
            found.append(const(""))
            continue
        found.append(
            members(elements.values(), optional_at, separator, more=more, begin=begin, end=end)
        )
    whole = any_of(found)
    if whole is None:
        raise unwritable("an object that no value is valid for")
    return whole


def _check_object(flat: Flat, *, is_lenient: bool) -> None:
    """Raises GrammarError for what these parts do not hold. `is_lenient`: numbers of members are
    not held, which is not an error."""
    properties, required, more = members_of(flat)
    rest = {key for one in flat.get("allOf", ()) for key in one}
    is_open = more is not False or "patternProperties" in flat
    least, most = flat.get("minProperties", 0), flat.get("maxProperties")
    if least > len(required) and not is_lenient:
        raise unwritable("minProperties")
    if not is_lenient and most is not None and (is_open or most < len(properties)):
        raise unwritable("maxProperties")
    if wrong := rest & {*PROPERTIES, "minProperties", "maxProperties"}:
        raise unwritable(f"different {min(wrong)}")


def _others(flat: Flat, key: str) -> Iterator[tuple[dict[str, Any], Any]]:
    """Forms of names that the schema of an object does not give, with the members' schemas."""
    properties, _, more = members_of(flat)
    names = ["|".join(map(expression, properties))] if properties else []
    named = {
        regex_body(whole_pattern(rust_pattern(pattern))): schema
        for pattern, schema in flat.get("patternProperties", {}).items()
    }
    for pattern, schema in named.items():
        form = {"patterns": [key, pattern], "excluded_patterns": names}
        yield form, schema
    form = {"patterns": [key], "excluded_patterns": [*names, *named]}
    if more is not False:
        yield form, more


class NamedValues:
    """Named parts for the values of one tool. Each schema gets one part, so that a schema may refer
    to itself."""

    def __init__(self, tool: str) -> None:
        """`tool`: the name of the tool, which must be unique."""
        self._tool = tool
        self._names: dict[tuple[int, str], str] = {}
        """Names by the identity of the schema, which its resolver keeps alive, and the type."""

    def part(self, flat: Flat, kind: str, write: Callable[[], Part]) -> Part:
        """The part for the values of a type of this schema, built by `write` on first use."""
        if (name := self._names.get((id(flat), kind))) is not None:
            return {"type": "reference", "name": name}
        name = self._names[id(flat), kind] = f"{self._tool} {len(self._names)}"
        return {"type": "named", "name": name, "content": write()}


def any_of(parts: Iterable[Part]) -> Part | None:
    """One of these parts; None if there are none."""
    found = [*parts]
    return either(found) if len(found) > 1 else found[0] if found else None


def json_parts(
    value: ValueSchema, *, scalars: bool = True, containers: bool = True, by_type: bool = False
) -> Iterator[tuple[str, Part]]:
    """Parts, each with a type, for the JSON values of a schema that are not strings. `scalars`:
    with those that are scalars; without them, only numbers that have no expression are left.
    `containers`: with arrays and objects. `by_type`: a part for each type."""
    if scalars and containers and not by_type and "string" not in value.types:
        if value.alternatives:
            yield min(value.types), json_part(value)
        return
    for flat in value.alternatives:
        types = types_of(flat) - {"string"}
        if not containers:
            types &= SCALARS
        if not scalars and (not is_stepped(flat) or "enum" in flat):
            types -= SCALARS
        if not scalars and "enum" in flat:
            types = frozenset()
        groups = [[kind] for kind in sorted(types)] if by_type else [sorted(types)] if types else []
        for group in groups:
            part = {**flat, "type": group if len(group) > 1 else group[0]}
            if "enum" in flat:
                values = [one for one in flat["enum"] if type_of(one) in group]
                part = {"enum": values}
            yield group[0], json_part(value.inner(part))


def json_part(value: ValueSchema) -> Part:
    """A JSON value of a schema."""
    if not isinstance(value.schema, Mapping):
        return json_schema(value.schema)
    root, shared = value.resolver.root, ["x-guidance"]
    if any("$ref" in each for each in objects_within(value.schema)):
        shared += DEFINITIONS
    return json_schema({**{key: root[key] for key in shared if key in root}, **value.schema})
