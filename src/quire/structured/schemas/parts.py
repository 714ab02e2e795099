"""`parts_of`: a JSON schema as parts of a structural tag, around the numbers that have patterns.

llguidance takes no pattern of a number. So everything that leads from the root of a schema to such
a number is written out: objects, arrays, alternatives and references. The rest stays a schema. What
cannot be written out is refused, with its place in the schema.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

from quire.errors import GrammarError
from quire.structured.params import FIELD
from quire.structured.schemas.digits import fraction_of, literal
from quire.structured.schemas.merging import KEYWORDS, is_exact_value, resolved
from quire.structured.schemas.places import ANNOTATIONS, DEFINITIONS
from quire.structured.schemas.tag_parts import array, between, none_of
from quire.structured.tags.parts import Part, either, json_schema, regex, sequence, star

_ALL_TYPES = ("null", "boolean", "number", "string", "array", "object")
_NUMBERS = ("number", "integer")
_OBJECT = ("properties", "required", "additionalProperties")
_ARRAY = ("items", "prefixItems", "minItems", "maxItems")
_JOINING = frozenset({
    "$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "not", "if", "then", "else",
    "enum", "const",
})  # fmt: skip
"""Keywords that hold for values of all types."""
_MAX_PREFIX_ITEMS = 64
"""Maximum prefix items of an array that is written out, because its parts are nested."""
_schemas = count()


@dataclass(frozen=True, slots=True)
class SettledSchema:
    """A part that stays a schema: nothing of it is left to settle."""

    schema: dict[str, Any]


def parts_of(schema: dict[str, Any], patterns: Mapping[int, str], options: dict[str, Any]) -> Part:
    """`patterns`: as `settle_numbers` returns them. `options`: for the library, in the parts that
    stay schemas. Raises GrammarError."""
    return _Writer(schema, patterns, options).part(schema, "#")


class _Writer:
    """Writes one schema."""

    def __init__(
        self, root: dict[str, Any], patterns: Mapping[int, str], options: dict[str, Any]
    ) -> None:
        self._root, self._patterns, self._options = root, patterns, options
        self._name = f"schema {next(_schemas)}"
        self._marked = _leading_to(root, patterns)
        self._known: set[str] = set()
        """References whose targets are written, or being written."""
        pattern = options.get("whitespace_pattern")
        if pattern is None and options.get("whitespace_flexible", True):
            pattern = r"[ \t\n\r]+"
        self._space = f"(?:{pattern})?" if pattern else ""

    def part(self, node: Any, path: str) -> Part:
        """The part for a schema."""
        if not isinstance(node, dict) or id(node) not in self._marked:
            return self._schema(node)
        keys = {key for key in node if key not in ANNOTATIONS and not key.startswith("x-")}
        if keys == {"$ref"}:
            return self._reference(node["$ref"], path)
        for keyword in ("anyOf", "oneOf", "allOf"):
            if keys == {keyword} and isinstance(node[keyword], list):
                return self._branches(keyword, node[keyword], path)
        if "enum" in keys or "const" in keys:
            self._only(keys, {"type", "enum", "const"}, path)
            return self._values(node)
        return self._by_type(node, path)

    def _by_type(self, node: dict[str, Any], path: str) -> Part:
        """The types of which something is written out, and all others as a schema."""
        given = node.get("type", _ALL_TYPES)
        types = [given] if isinstance(given, str) else [*given]
        rest = {key: value for key, value in node.items() if key not in DEFINITIONS}
        found: list[Part] = []
        writers: list[tuple[tuple[str, ...], tuple[str, ...], Callable[..., Part]]] = [
            (_NUMBERS, KEYWORDS, lambda *_: regex(self._patterns[id(node)])),
            (("object",), _OBJECT, self._object),
            (("array",), _ARRAY, self._array),
        ]
        for names, keywords, write in writers:
            has_part = (
                id(node) in self._patterns
                if names is _NUMBERS
                else any(self._is_marked(node.get(key)) for key in keywords)
            )
            if not has_part or not set(names) & set(types):
                continue
            types = [kind for kind in types if kind not in names]
            rest = {key: value for key, value in rest.items() if key not in keywords}
            found.append(write(node, path))
        self._only(rest.keys() & _JOINING, set(), path)
        for key, value in rest.items():
            if self._is_marked(value):
                raise _error(f"in {key}", path)
        if not found:
            raise _error(f"where the type is {node.get('type')}", path)
        if types:
            found.append(self._schema({**rest, "type": types}))
        return either(found)

    def _is_marked(self, value: Any) -> bool:
        return id(value) in self._marked

    def _only(self, keys: Iterable[str], known: set[str], path: str) -> None:
        if others := set(keys) - known:
            raise _error(f"next to {min(others)}", path)

    def _schema(self, node: Any) -> Part:
        """A part that is a schema, with the definitions that it may refer to."""
        inner = node if isinstance(node, dict) else {} if node else {"enum": []}
        definitions = {key: self._root[key] for key in DEFINITIONS if key in self._root}
        inner = {**definitions, **inner, "x-guidance": self._options}
        return json_schema(SettledSchema(inner))

    def _reference(self, reference: str, path: str) -> Part:
        name = f"{self._name} {reference}"
        if name in self._known:
            return {"type": "reference", "name": name}
        try:
            target = resolved(self._root, reference)
        except (LookupError, ValueError, TypeError):
            raise _error(f"in the target of $ref {reference}", path) from None
        self._known.add(name)
        return {"type": "named", "name": name, "content": self.part(target, reference)}

    def _branches(self, keyword: str, branches: list[Any], path: str) -> Part:
        if keyword == "allOf" and len(branches) > 1:
            raise _error("in allOf", path)
        if keyword == "oneOf" and not self._are_apart(branches):
            raise _error("in oneOf, unless each branch has another type; use anyOf", path)
        return either(self.part(one, f"{path}/{keyword}/{i}") for i, one in enumerate(branches))

    def _are_apart(self, branches: list[Any]) -> bool:
        """Whether no value can have the types of two of these."""
        seen: set[str] = set()
        for branch in branches:
            given = branch.get("type", _ALL_TYPES) if isinstance(branch, dict) else _ALL_TYPES
            types = {given} if isinstance(given, str) else set(given)
            types |= {"number"} if "integer" in types else set()
            if types & seen:
                return bool(self._options.get("coerce_one_of") or self._options.get("lenient"))
            seen |= types
        return True

    def _values(self, node: dict[str, Any]) -> Part:
        """The part for the values of `enum` or `const`."""
        values = node.get("enum", [node.get("const")])
        if "const" in node:
            values = [value for value in values if value == node["const"]]
        given = node.get("type", [*_ALL_TYPES, "integer"])
        types = {given} if isinstance(given, str) else {*given}
        values = [value for value in values if _types_of(value) & types]
        exact = [value for value in values if is_exact_value(value)]
        found = [self._value(value) for value in values if not is_exact_value(value)]
        if exact or not found:
            found.append(self._schema({"enum": exact}))
        return either(found)

    def _value(self, value: Any) -> Part:
        """One value, with the white space that may be in it."""
        if is_exact_value(value):
            return self._schema({"const": value})
        if isinstance(value, dict):
            elements = [self._member(key, self._value(one)) for key, one in value.items()]
            return between("{", elements, [], "}")
        if isinstance(value, list):
            return between("[", [self._spaced(self._value(one)) for one in value], [], "]")
        return regex(re.escape(literal(fraction_of(value))))

    def _object(self, node: dict[str, Any], path: str) -> Part:
        self._only(
            {key for key in node if key.endswith("Properties") or key.startswith("dependent")},
            {"additionalProperties"},
            path,
        )
        properties: dict[str, Any] = node.get("properties") or {}
        required = [*(node.get("required") or ())]
        more = node.get("additionalProperties", True)
        named = {**properties, **{key: more for key in required if key not in properties}}
        elements, optional = list[Part](), list[int]()
        for key, schema in named.items():
            if schema is False and key not in required:
                continue
            if key not in required:
                optional.append(len(elements))
            written = self.part(schema, f"{path}/properties/{key}")
            elements.append(self._member(key, written))
        if more is not False:
            optional.append(len(elements))
            other = self._others(named, self.part(more, f"{path}/additionalProperties"))
            elements.append(sequence(other, star(sequence(regex(","), other))))
        return between("{", elements, optional, "}")

    def _member(self, key: str, value: Part) -> Part:
        name = re.escape(json.dumps(key, ensure_ascii=False))
        return self._spaced(sequence(regex(f"{name}{self._space}:{self._space}"), value))

    def _others(self, names: Iterable[str], value: Part) -> Part:
        """A member with another name than these."""
        key = self._schema({"type": "string", "pattern": f"^(?s:{none_of([*names])})$"})
        colon = regex(f"{self._space}:{self._space}")
        return self._spaced(sequence(key, colon, value))

    def _spaced(self, part: Part) -> Part:
        return sequence(regex(self._space), part, regex(self._space)) if self._space else part

    def _array(self, node: dict[str, Any], path: str) -> Part:
        self._only(
            {key for key in node if key.endswith("Items") or key in ("contains",)},
            set(_ARRAY),
            path,
        )
        least, most = node.get("minItems", 0), node.get("maxItems")
        given, rest = node.get("prefixItems") or [], node.get("items", True)
        if not isinstance(rest, (dict, bool)):
            raise _error("in items that is a list; use prefixItems", path)
        if len(given) > _MAX_PREFIX_ITEMS or not isinstance(least, int):
            raise _error("in an array of this kind", path)
        if rest is False and least > len(given):
            return self._schema(False)
        first = [self._item(one, f"{path}/prefixItems/{i}") for i, one in enumerate(given)]
        others = None if rest is False else self._item(rest, f"{path}/items")
        return array(first, others, least, most)

    def _item(self, node: Any, path: str) -> Part:
        return self._spaced(self.part(node, path))


def _leading_to(root: dict[str, Any], patterns: Mapping[int, str]) -> set[int]:
    """The `id` of all that has one of these nodes in it, also by reference. What a reference names
    outside of the definitions can be found from the root alone."""
    holders: dict[int, list[int]] = {}
    marked = [*patterns]
    left: list[Any] = [root]
    while left:
        each = left.pop()
        for part in each.values() if isinstance(each, dict) else each:
            if isinstance(part, (dict, list)):
                holders.setdefault(id(part), []).append(id(each))
                left.append(part)
        reference = each.get("$ref") if isinstance(each, dict) else None
        if isinstance(reference, str):
            if not reference.startswith(("#/$defs/", "#/definitions/")):
                marked.append(id(each))
                continue
            try:
                target = resolved(root, reference)
            except (LookupError, ValueError, TypeError):
                marked.append(id(each))
            else:
                holders.setdefault(id(target), []).append(id(each))
    found = set[int]()
    while marked:
        one = marked.pop()
        if one not in found:
            found.add(one)
            marked += holders.get(one, [])
    return found


def _types_of(value: Any) -> set[str]:
    """The types that a schema may give to a JSON value."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return {"number", "integer"} if value % 1 == 0 else {"number"}
    names = {bool: "boolean", str: "string", dict: "object", list: "array"}
    return {names.get(type(value), "null")}


def _error(where: str, path: str) -> GrammarError:
    return GrammarError(
        f"{FIELD}.json: a number with more than 15 digits, or between bounds that a 64-bit float "
        f"cannot hold exactly, cannot be used {where} (at {path})",
        parameter=f"{FIELD}.json",
    )
