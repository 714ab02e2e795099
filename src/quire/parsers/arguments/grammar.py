"""Parts of structural tags for calls whose arguments are written one by one."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quire.parsers.arguments.values import Types, json_text, types_of
from quire.parsers.format import Schemas
from quire.structured.schemas.patterns import rust_pattern
from quire.structured.source import regex_body
from quire.structured.tags.parts import (
    Part,
    any_text,
    const,
    either,
    json_schema,
    members,
    optional,
    regex,
    repeat,
    separated,
    sequence,
    star,
    tag,
)

_DEFINITIONS = ("$defs", "definitions")
_ANYTHING = "(.|\\n)*"
_ANY_KEY = "[A-Za-z0-9_.-]{1,64}"


@dataclass(frozen=True)
class Layout:
    """How the template of a model writes calls: the texts around each part.

    `{name}` stands for the tool, `{key}` for the argument, `{type}` for its type.
    """

    call: tuple[str, str]
    text: tuple[str, str]
    """Texts around a string argument."""
    value: tuple[str, str] | None = None
    """Texts around an argument of any other type, written as JSON; None: the same as `text`."""
    around: tuple[str, str] | None = None
    """Texts around the whole list of calls."""
    separator: str = "\n"
    """Text between calls. What follows the last call must not begin with it."""
    excluded: tuple[str, ...] = ()
    """Texts that a string cannot contain, because they would end it."""


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
    properties = schema.get("properties")
    if not isinstance(properties, Mapping) or not properties:
        if schema.get("additionalProperties") is False:
            return const("")
        return star(_any_argument(layout))
    return in_order(schema, lambda key, of: _argument(key, of, schema, layout))


def in_order(schema: Mapping[str, Any], part: Callable[[str, Any], Part]) -> Part:
    """The properties of a schema, each written as `part` returns it."""
    required = schema.get("required")
    needed = set(required) if isinstance(required, list) else set()
    parts = [(key, part(key, of)) for key, of in schema["properties"].items()]
    return sequence(*(one if key in needed else optional(one) for key, one in parts))


def with_separator(
    schema: Mapping[str, Any], separator: str, part: Callable[[str, Any], Part]
) -> Part:
    """The properties of a schema, each written as `part` returns it, joined by a separator."""
    properties = schema.get("properties")
    if not isinstance(properties, Mapping) or not properties:
        return const("")
    required = schema.get("required")
    needed = set(required) if isinstance(required, list) else set()
    parts = [part(key, of) for key, of in properties.items()]
    optional_at = [i for i, key in enumerate(properties) if key not in needed]
    return members(parts, optional_at, separator)


def items(item: Part, separator: str, array: Mapping[str, Any]) -> Part:
    """The items of an array, with the number of items that its schema allows."""
    least, most = (
        count if isinstance(count := array.get(keyword), int) else None
        for keyword in ("minItems", "maxItems")
    )
    if most == 0 and not least:
        return const("")
    following = sequence(const(separator), item)
    left = None if most is None else most - 1
    some = sequence(item, repeat(following, max((least or 0) - 1, 0), left))
    return some if least else optional(some)


class NamedValues:
    """Named parts for the values of one tool. Each schema gets one part, so that a schema may refer
    to itself."""

    def __init__(self, tool: str) -> None:
        """`tool`: the name of the tool, which must be unique."""
        self._tool = tool
        self._names: dict[int, str] = {}
        """Part names by the identity of the schema; the tool keeps the schemas alive."""

    def part(self, schema: Mapping[str, Any], write: Callable[[], Part]) -> Part:
        """The part for a value of this schema, built by `write` on first use."""
        if (name := self._names.get(id(schema))) is not None:
            return {"type": "reference", "name": name}
        name = self._names[id(schema)] = f"{self._tool} {len(self._names)}"
        return {"type": "named", "name": name, "content": write()}


def _argument(key: str, of: Any, root: Mapping[str, Any], layout: Layout) -> Part:
    types = types_of(of, root)
    is_text = "string" in types
    around = layout.text if is_text or layout.value is None else layout.value
    before, after = (text.replace("{key}", key).replace("{type}", _name(types)) for text in around)
    content = text_part(of, layout.excluded) if is_text else json_part(of, root)
    return tag(before, content, after)


def _any_argument(layout: Layout) -> Part:
    """A string argument with any name."""
    before, after = layout.text
    head, tail = before.replace("{type}", "string").split("{key}", 1)
    return sequence(const(head), regex(_ANY_KEY), tag(tail, text_part({}, layout.excluded), after))


def _name(types: Types) -> str:
    """The name written in a tag for one of these types."""
    if "string" in types or len(types) > 1:
        return "string" if "string" in types else min(types - {"null"})
    return "number" if types == {"integer"} else min(types)


def text_part(schema: Any, excluded: Sequence[str]) -> Part:
    """An unquoted string: one of an `enum`, or any text without the texts that would end it."""
    values = schema.get("enum") if isinstance(schema, Mapping) else None
    if isinstance(values, list) and values:
        words = [value if isinstance(value, str) else json_text(value) for value in values]
        return either(map(const, words))
    text = any_text(excluded)
    patterns = _patterns(schema) if isinstance(schema, Mapping) else []
    return {**text, "patterns": patterns} if patterns else text


def _patterns(schema: Mapping[str, Any]) -> list[str]:
    """Patterns that the keywords of a string schema, or of one of its branches, require."""
    patterns = []
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if least or most is not None:
        patterns.append(f"(.|\\n){{{least},{'' if most is None else most}}}")
    if isinstance(pattern := schema.get("pattern"), str):
        patterns.append(_found(rust_pattern(pattern)))
    for keyword in ("anyOf", "oneOf"):
        branches = [one for one in schema.get(keyword) or () if isinstance(one, Mapping)]
        texts = [_patterns(one) for one in branches if "string" in (one.get("type") or "string")]
        if texts and all(len(each) == 1 for each in texts):
            patterns.append("|".join(f"({each[0]})" for each in texts))
    return patterns


def _found(pattern: str) -> str:
    """An expression for any text that contains a match of the pattern."""
    is_whole = re.search(r"(?<!\\)(\\\\)*\$$", pattern) is not None
    before, after = ("" if pattern.startswith("^") else _ANYTHING), "" if is_whole else _ANYTHING
    inner = pattern.removeprefix("^")
    return f"{before}({regex_body(inner[:-1] if is_whole else inner)}){after}"


def json_part(schema: Any, root: Mapping[str, Any]) -> Part:
    """A JSON value of a schema, which may refer to definitions of `root`."""
    if not isinstance(schema, Mapping):
        return json_schema(schema)
    definitions = {key: root[key] for key in _DEFINITIONS if key in root}
    return json_schema({**definitions, **schema})
