"""Strings that are written without quotes, and the scalars that may stand in their place.

llguidance reads a text by one expression at a time. So where a value may be a string or a number,
one expression has both. A string must not look like another value that its schema allows, because
`values.converted` would read it as that.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from quire.parsers.arguments.schemas import ValueSchema
from quire.parsers.arguments.values import TEXT, Types
from quire.structured.schemas.digits import number_pattern
from quire.structured.schemas.exact import make_exact
from quire.structured.schemas.formats import LIBRARY_FORMATS
from quire.structured.schemas.merging import range_of
from quire.structured.schemas.numbers import is_empty_range, whole_range
from quire.structured.schemas.patterns import whole_pattern
from quire.structured.schemas.resolving import Flat, types_of
from quire.structured.source import regex_body
from quire.structured.tags.parts import Part, const
from quire.structured.tags.texts import expression

SCALARS = frozenset({"null", "boolean", "number", "integer"})
_NUMBERS = frozenset({"number", "integer"})
_CHECKED = ("pattern", "format", "contentEncoding", "minLength", "maxLength", "allOf")
_SPACE = r"[\s\x1c-\x1f]*"
_TRIMMED = r"([^ \t\r\n]((.|\n)*[^ \t\r\n])?)?"
_LOOKS_LIKE = {
    "null": "(?i:null|none)",
    "boolean": "(?i:true|false)",
    "number": r"[+-]?[\d_.]+([eE][+-]?[\d_]+)?",
    "integer": r"[+-]?[\d_.]+([eE][+-]?[\d_]+)?",
    "array": r"[\[{(](.|\n)*",
    "object": r"[\[{(](.|\n)*",
}
"""Texts that `converted` may read as a value of a type."""
_QUOTED = '"(.|\\n)*"'
_STEPPED = r"[+-]?[\d.](.|\n)*"
"""First characters of numbers that an expression of their own reads."""


def string_parts(
    value: ValueSchema,
    excluded: Sequence[str],
    *,
    is_apart: bool,
    is_trimmed: bool = False,
    is_shared: bool = False,
) -> list[Part]:
    """Parts for the strings that a value may be; none if it is not a string. If they are more than
    a few words, one part, which has the scalars too unless other values are marked (`is_apart`).

    `excluded`: expressions that a string does not contain. `is_trimmed`: white space around a
    string is not read. `is_shared`: another value may be in the same place, so that the scalars are
    always a part of this kind.
    """
    is_shared = is_shared and not is_apart
    strings = [flat for flat in value.alternatives if "string" in (types_of(flat) or TEXT)]
    are_words = all("enum" in flat and not any(key in flat for key in _CHECKED) for flat in strings)
    if are_words and not is_shared:
        return [const(word) for word in dict.fromkeys(_words(strings))]
    others = frozenset() if is_apart else value.types - TEXT
    looks = {_SPACE + _LOOKS_LIKE[kind] + _SPACE for kind in others if kind in _LOOKS_LIKE}
    if looks:
        looks.add(_SPACE + _QUOTED + _SPACE)
    if not is_apart and any(is_stepped(flat) for flat in value.alternatives):
        looks.add(_SPACE + _STEPPED)
    forms = [_string_form(flat, sorted(looks), is_trimmed=is_trimmed) for flat in strings]
    if not is_apart:
        for flat in value.alternatives:
            forms += [{"patterns": [pattern]} for pattern in _scalars(flat)]
    if not forms:
        return []
    text: Part = {"type": "any_text", "excluded_patterns": [*excluded]}
    return [text if {} in forms else {**text, "forms": forms}]


def is_stepped(flat: Flat) -> bool:
    """Whether its numbers have no expression."""
    rest = [*flat.keys(), *(key for one in flat.get("allOf", ()) for key in one)]
    return bool(types_of(flat) & _NUMBERS) and "enum" not in flat and "multipleOf" in rest


def _words(flats: Iterable[Flat]) -> list[str]:
    values = (value for flat in flats for value in flat.get("enum", ()))
    return [value for value in values if isinstance(value, str)]


def _string_form(flat: Flat, looks: list[str], *, is_trimmed: bool) -> dict[str, Any]:
    """The form of the strings of an alternative; empty for any string."""
    patterns = [*_patterns(flat)]
    if "enum" in flat:
        patterns.append("|".join(map(expression, _words([flat]))))
    elif is_trimmed:
        patterns.append(_TRIMMED)
    form = {"patterns": patterns} if patterns else {}
    return form | ({"excluded_patterns": looks} if looks and "enum" not in flat else {})


def _patterns(flat: Flat) -> Iterator[str]:
    """Expressions, each of which a string has to match as a whole."""
    node = copy.deepcopy({key: flat[key] for key in _CHECKED if key in flat})
    make_exact(node)
    for each in (node, *node.get("allOf", ())):
        least, most = each.get("minLength", 0), each.get("maxLength")
        if least or most is not None:
            yield f"(.|\\n){{{least},{'' if most is None else most}}}"
        if isinstance(pattern := each.get("pattern"), str):
            yield regex_body(whole_pattern(pattern))
        if (name := each.get("format")) in LIBRARY_FORMATS:
            yield regex_body(LIBRARY_FORMATS[name])


def _scalars(flat: Flat) -> Iterator[str]:
    """Expressions of the values of an alternative that are not strings, arrays or objects."""
    if "enum" in flat:
        rest = [value for value in flat["enum"] if not isinstance(value, str)]
        yield from (expression(json.dumps(value, ensure_ascii=False)) for value in rest)
        return
    types: Types = types_of(flat)
    if "null" in types:
        yield "null"
    if "boolean" in types:
        yield "true|false"
    if types & _NUMBERS and not is_stepped(flat):
        is_integer = "number" not in types
        numbers = whole_range(range_of(flat)) if is_integer else range_of(flat)
        if not is_empty_range(numbers):
            yield regex_body(number_pattern(numbers, is_integer=is_integer))
