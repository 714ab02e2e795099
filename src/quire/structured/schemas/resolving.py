"""`Resolver`: a JSON schema as alternatives without `$ref`, `allOf`, `anyOf` and `oneOf`.

Calls whose arguments are written one by one are held and read by these alternatives, and `closing`
forbids properties in them. An alternative is a schema with these rules: `type` is a list; `enum`
replaces `const` and has only values that the other keywords of numbers, lengths and types allow;
`properties`, `required` and `additionalProperties` are those of all schemas that were merged;
`allOf` has only keywords that two schemas give with different values, such as two patterns.
Keywords that JSON Schema does not check, such as `title`, are left out.

A value is valid if it is valid by one of the alternatives. `oneOf` counts as `anyOf`: the compiler
has checked that its branches exclude each other. A schema that refers to itself without an object
or an array between allows nothing there. Schemas below properties and items stay as they were
given, or become an `allOf` of them, and are resolved when they are asked for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from quire.errors import GrammarError, quoted
from quire.structured.params import FIELD
from quire.structured.schemas.digits import fraction_of
from quire.structured.schemas.merging import KEYWORDS, is_number, objects_within, range_of, resolved
from quire.structured.schemas.places import ANNOTATIONS, DEFINITIONS, TYPE_NAMES, type_of

Flat = dict[str, Any]
"""One alternative."""
MAX_ALTERNATIVES = 64
"""Maximum number of alternatives of one schema."""
MAX_STEPS = 50_000
"""Maximum number of schemas, and of their types, values and properties, that are merged for one
root."""
MAX_NESTED = 100
"""Maximum number of references, branches and parts of `allOf` within each other."""
_MAX_MOVED = 64
_DEFINITION = re.compile(r"#/(\$defs|definitions)/[^/]+")
BRANCHES = ("anyOf", "oneOf")
_JOINING = frozenset({"$ref", "allOf", "unevaluatedProperties", *BRANCHES, *ANNOTATIONS})
PROPERTIES = ("properties", "patternProperties", "additionalProperties")
_LONG = ("properties", "required", "enum", "type", "allOf")
"""Keywords whose values are copied or compared when two schemas are merged."""
_HINTS = {
    "object": ("properties", "required", "additionalProperties", "patternProperties"),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
    "string": ("pattern", "format", "minLength", "maxLength", "contentEncoding"),
    "number": KEYWORDS,
}
"""Keywords by the type that a schema without types implies by them."""


class Resolver:
    """Resolves the schemas of one document."""

    def __init__(self, root: Mapping[str, Any], *, is_lenient: bool = False) -> None:
        """`is_lenient`: a schema that cannot be resolved allows anything, and is not an error."""
        self.root = root
        self._is_lenient = is_lenient
        self._left = MAX_STEPS
        self._known: dict[int, tuple[Any, list[Flat]]] = {}
        """Alternatives by the `id` of their schema, which stays alive with them."""
        self._both: dict[tuple[int, int], tuple[Any, Any, Any]] = {}
        """Results of merging two schemas, and the two, by their `id`."""
        self.branched: set[str] = set()
        """The keywords among `anyOf` and `oneOf` that gave several branches since this was last
        cleared."""

    def alternatives(self, schema: Any) -> list[Flat]:
        """The alternatives of a schema, the same objects each time. None: no value is valid. Raises
        GrammarError for what is too large, and for a reference to something unknown."""
        if id(schema) not in self._known:
            try:
                found = self._of(schema, ())
            except (GrammarError, RecursionError) as error:
                if not self._is_lenient:
                    raise error if isinstance(error, GrammarError) else too_complex() from None
                found = [{}]
            self._known[id(schema)] = schema, found
        return self._known[id(schema)][1]

    def _of(self, schema: Any, within: tuple[str, ...]) -> list[Flat]:
        """`within`: the references that lead here, and an empty text for each other level."""
        if not isinstance(schema, Mapping):
            return [] if schema is False else [{}]
        self._spend(1, within)
        found: list[Flat] = [{}]
        for ways in self._conditions(schema, within):
            found = self._merged(found, ways)
        if "unevaluatedProperties" in schema:
            rest = schema["unevaluatedProperties"]
            found = [{"additionalProperties": rest, **flat} for flat in found]
        return found

    def _conditions(
        self, schema: Mapping[str, Any], within: tuple[str, ...]
    ) -> Iterator[list[Flat]]:
        """The alternatives of all that hold together, in the order in which the library writes
        properties."""
        inner = (*within, "")
        if isinstance(reference := schema.get("$ref"), str):
            yield self._target(reference, within)
        own = "properties" if "properties" in schema else next(iter(schema), None)
        if own is None:
            yield [{}]
        for keyword, value in schema.items():
            if keyword == own:
                yield [flat] if (flat := _own(schema)) is not None else []
            if keyword == "allOf":
                yield from (self._of(part, inner) for part in _list(value))
            elif keyword in BRANCHES and _list(value):
                if len(value) > 1:
                    self.branched.add(keyword)
                yield self._bounded([flat for one in value for flat in self._of(one, inner)])

    def _target(self, reference: str, within: tuple[str, ...]) -> list[Flat]:
        if reference in within:
            return []
        try:
            target = resolved(self.root, reference)
        except (LookupError, ValueError, TypeError):
            raise _error(f"has a $ref {quoted(reference)}; use '#/$defs/NAME' instead") from None
        return self._of(target, (*within, reference))

    def _merged(self, ones: list[Flat], others: list[Flat]) -> list[Flat]:
        found: list[Flat] = []
        for one in ones:
            for other in others:
                self._spend(1)
                if (flat := self._both_of(one, other)) is not None:
                    found.append(flat)
        return self._bounded(found)

    def _spend(self, steps: int, within: tuple[str, ...] = ()) -> None:
        self._left -= steps
        if self._left < 0 or len(within) > MAX_NESTED:
            raise too_complex()

    def _bounded(self, found: list[Flat]) -> list[Flat]:
        if len(found) > MAX_ALTERNATIVES:
            raise too_complex()
        return found

    def _both_of(self, one: Flat, other: Flat) -> Flat | None:
        """The schema of the values that are valid by both; None if there are none."""
        if not one or not other:
            return one or other
        self._spend(sum(len(each.get(key, ())) for each in (one, other) for key in _LONG))
        flat = {**other, **one}
        left = list[Any](flat.pop("allOf", ()))
        if "allOf" in one:
            left += other.get("allOf", ())
        shared = {key for key in one.keys() & other.keys() if key not in (*PROPERTIES, "allOf")}
        for key in sorted(shared):
            rule = _RULES.get(key)
            both = None if rule is None else rule(one[key], other[key])
            if key == "items":
                flat[key] = self._all_of(one[key], other[key])
            elif both is not None:
                flat[key] = both
            elif one[key] != other[key]:
                left.append({key: other[key]})
        left += self._join_objects(flat, one, other)
        return _checked({**flat, "allOf": left} if left else flat)

    def _join_objects(self, flat: Flat, one: Flat, other: Flat) -> list[Any]:
        """Merges the properties. Returns what cannot be merged."""
        if not any(key in one for key in PROPERTIES) or not any(key in other for key in PROPERTIES):
            return []
        if "patternProperties" in one or "patternProperties" in other:
            rest = {key: other[key] for key in PROPERTIES if key in other}
            flat.update({key: one[key] for key in PROPERTIES if key in one})
            for key in rest.keys() - one.keys():
                del flat[key]
            return [rest]
        schemas = [each.get("properties", {}) for each in (one, other)]
        more = [each.get("additionalProperties", True) for each in (one, other)]
        if schemas[0] or schemas[1] or any("properties" in each for each in (one, other)):
            flat["properties"] = {
                key: self._all_of(schemas[0].get(key, more[0]), schemas[1].get(key, more[1]))
                for key in {**schemas[0], **schemas[1]}
            }
        if "additionalProperties" in flat:
            flat["additionalProperties"] = self._all_of(*more)
        return []

    def _all_of(self, one: Any, other: Any) -> Any:
        """A schema for values that are valid by both; the same object each time."""
        if one is other or other is True or other == {}:
            return one
        if one is True or one == {}:
            return other
        if one is False or other is False:
            return False
        if (id(one), id(other)) not in self._both:
            self._both[id(one), id(other)] = self._new(one, other), one, other
        return self._both[id(one), id(other)][0]

    def _new(self, one: Any, other: Any) -> Any:
        if any(key in each for each in (one, other) for key in _JOINING - {*ANNOTATIONS}):
            return {"allOf": [one, other]}
        self._spend(1)
        first, second = _own(one), _own(other)
        both = None if first is None or second is None else self._both_of(first, second)
        return False if both is None else both


def with_definitions(root: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with a definition for each target of a `$ref` that is not one, so that parts of it
    can be taken out together with the definitions. Unchanged if there are very many of them."""
    given = {
        node["$ref"]
        for node in objects_within(root)
        if isinstance(node.get("$ref"), str) and not _DEFINITION.fullmatch(node["$ref"])
    }
    if not given or len(given) > _MAX_MOVED:
        return dict(root)
    names: dict[str, str] = {}
    targets: dict[str, Any] = {}
    for number, reference in enumerate(sorted(given)):
        with suppress(LookupError, ValueError, TypeError):
            target = resolved(root, reference)
            names[reference] = f"target_{number}_of_reference"
            targets[names[reference]] = target
    moved = _with_references(root, names)
    targets = {
        name: _with_references(
            {key: part for key, part in target.items() if key not in DEFINITIONS}
            if isinstance(target, Mapping)
            else target,
            names,
        )
        for name, target in targets.items()
    }
    return {**moved, "$defs": {**moved.get("$defs", {}), **targets}}


def _with_references(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, list):
        return [_with_references(one, names) for one in value]
    if not isinstance(value, Mapping):
        return value
    reference = value.get("$ref")
    if isinstance(reference, str) and reference in names:
        value = {**value, "$ref": f"#/$defs/{names[reference]}"}
    return {key: _with_references(part, names) for key, part in value.items()}


def types_of(flat: Flat) -> frozenset[str]:
    """The types of the values of an alternative; empty if its keywords say nothing about them."""
    if "enum" in flat:
        return frozenset(map(type_of, flat["enum"]))
    if "type" in flat:
        return frozenset(flat["type"])
    return frozenset(kind for kind, keys in _HINTS.items() if any(key in flat for key in keys))


def _own(schema: Mapping[str, Any]) -> Flat | None:
    """Constraints that a schema states itself."""
    flat = {key: value for key, value in schema.items() if key not in _JOINING}
    given = flat.pop("type", None)
    names = [given] if isinstance(given, str) else _list(given)
    names = [one.lower() for one in names if isinstance(one, str)]
    if names:
        flat["type"] = [*dict.fromkeys(TYPE_NAMES.get(name, name) for name in names)]
    if "const" in flat:
        values, flat["enum"] = flat.get("enum"), [flat.pop("const")]
        if isinstance(values, list):
            flat["enum"] = _common(flat["enum"], values)
    for key in ("properties", "patternProperties"):
        if not isinstance(flat.get(key, {}), Mapping):
            del flat[key]
    if not isinstance(flat.get("enum", []), list):
        del flat["enum"]
    if "required" in flat:
        flat["required"] = [key for key in _list(flat["required"]) if isinstance(key, str)]
    return _checked(flat)


def _checked(flat: Flat) -> Flat | None:
    """With those values of `enum` alone that the other keywords allow; None if no value is left."""
    if "enum" in flat:
        flat["enum"] = [value for value in flat["enum"] if _is_allowed(value, flat)]
    return None if flat.get("enum") == [] or flat.get("type") == [] else flat


def _is_allowed(value: Any, flat: Flat) -> bool:
    kinds = {type_of(value), "number" if is_number(value) else ""}
    if isinstance(value, float) and value % 1 == 0:
        kinds.add("integer")
    if "type" in flat and not kinds.intersection(flat["type"]):
        return False
    if isinstance(value, str):
        least, most = flat.get("minLength", 0), flat.get("maxLength", len(value))
        return not (is_number(least) and is_number(most)) or bool(least <= len(value) <= most)
    return not is_number(value) or range_of(flat).has(fraction_of(value))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _common(ones: list[Any], others: list[Any]) -> list[Any]:
    known = set(map(_key, others))
    return [one for one in ones if _key(one) in known]


def _key(value: Any) -> Any:
    """The same for equal values: for 1 and 1.0, and not for 1 and true."""
    if isinstance(value, dict | list):
        return json.dumps(value, sort_keys=True)
    return isinstance(value, bool), isinstance(value, str), value


def _common_types(ones: list[str], others: list[str]) -> list[str]:
    """`integer` is a part of `number`."""
    pairs = ((ones, {*others}), (others, {*ones}))
    found = [
        name
        for names, rest in pairs
        for name in names
        if name in rest or (name == "integer" and "number" in rest)
    ]
    return [*dict.fromkeys(found)]


def _limit(choose: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    return lambda one, other: choose(one, other) if is_number(one) and is_number(other) else None


_RULES: dict[str, Callable[[Any, Any], Any]] = {
    "type": _common_types,
    "enum": _common,
    "required": lambda one, other: [*dict.fromkeys([*one, *other])],
    **{key: _limit(max) for key in ("minimum", "exclusiveMinimum")},
    **{key: _limit(min) for key in ("maximum", "exclusiveMaximum")},
    **{f"min{what}": _limit(max) for what in ("Length", "Items", "Properties")},
    **{f"max{what}": _limit(min) for what in ("Length", "Items", "Properties")},
}
"""How the values that two schemas give to one keyword become one; None: they do not."""


def too_complex() -> GrammarError:
    """The error about schemas that cannot be merged."""
    return _error(
        "combines too many schemas: use fewer $ref, allOf, anyOf and oneOf within each other"
    )


def _error(what: str) -> GrammarError:
    return GrammarError(f"{FIELD}.json {what}", parameter=f"{FIELD}.json")
