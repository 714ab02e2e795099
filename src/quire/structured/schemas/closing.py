"""`closed`: a JSON schema whose objects have no properties but those that it names.

A small model may otherwise add properties without end. vLLM's xgrammar and llama.cpp do the same.
An object is closed where `properties` or `patternProperties` are given and neither
`additionalProperties` nor `unevaluatedProperties` says otherwise. Schemas that hold for one value
together (`allOf`, `$ref` or branches next to `properties`) are merged first, because closing each
of them would leave nothing; merged schemas are definitions, since they may refer to themselves.
`unevaluatedProperties`, which the library does not have, becomes `additionalProperties`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeGuard

from quire.errors import GrammarError
from quire.structured.schemas.places import DEFINITIONS
from quire.structured.schemas.resolving import (
    BRANCHES,
    PROPERTIES,
    Flat,
    Resolver,
    too_complex,
    with_definitions,
)

_OWN = (*PROPERTIES, "required", "minProperties", "unevaluatedProperties")
_NAMED = ("properties", "patternProperties", *DEFINITIONS)
"""Keywords whose values are objects of schemas."""
_INNER = frozenset({
    "additionalProperties", "items", "additionalItems", "prefixItems", "allOf", *BRANCHES,
})  # fmt: skip
_MAX_BYTES = 512 * 1024
_MAX_MERGED = 256
"""Maximum number of places where schemas are merged."""
_MAX_DEPTH = 100
"""Maximum number of schemas within each other, with those that merging brings."""


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """A closed copy, for a schema of checked depth. A schema that combines so many others in one
    place, both `anyOf` and `oneOf`, or different `patternProperties`, that they cannot be merged
    stays as it is: open."""
    if not all(isinstance(schema.get(key, {}), dict) for key in DEFINITIONS):
        return schema
    root = with_definitions(schema)
    closer = _Closer(root)
    try:
        found = closer.plain({key: root[key] for key in DEFINITIONS if key in root})
        found |= closer.closed({key: root[key] for key in root if key not in DEFINITIONS})
    except GrammarError:
        return schema
    found |= {key: root[key] for key in root.keys() & {"x-guidance"}}
    if closer.merged:
        found["$defs"] = {**found.get("$defs", {}), **closer.merged}
    text = json.dumps(found, ensure_ascii=False)
    return schema if len(text) > _MAX_BYTES else json.loads(text)


class _Closer:
    """Closes the parts of one schema. A part occurs several times in the result if several merged
    schemas have it."""

    def __init__(self, root: dict[str, Any]) -> None:
        self.merged: dict[str, Any] = {}
        """New definitions, by their names."""
        self._resolver = Resolver(root)
        self._taken = {*root.get("$defs", ())}
        self._depth = 0
        self._references: dict[int, dict[str, Any]] = {}
        """References to merged schemas, by the `id` of what was merged."""

    def closed(self, node: Any) -> Any:
        """A closed copy of a schema, or a reference to it."""
        if not isinstance(node, dict):
            return node
        if id(node) in self._references:
            return self._references[id(node)]
        if self._depth >= _MAX_DEPTH:
            raise too_complex()
        self._depth += 1
        found = self._merged(node) if _is_joined(node) else self.plain(node)
        self._depth -= 1
        return found

    def _merged(self, node: dict[str, Any]) -> dict[str, Any]:
        self._resolver.branched.clear()
        flats = self._resolver.alternatives(node)
        if not any(key in flat for flat in flats for key in PROPERTIES):
            return self.plain(node)
        return self._written(node, flats)

    def _written(self, node: dict[str, Any], flats: list[Flat]) -> dict[str, Any]:
        """A reference to these alternatives. Raises GrammarError for what cannot be merged."""
        if len(self.merged) >= _MAX_MERGED or len(self._resolver.branched) > 1:
            raise too_complex()
        left = [key for flat in flats for one in flat.get("allOf", ()) for key in one]
        if any(key in left for key in PROPERTIES):
            raise too_complex()
        keyword = next(iter(self._resolver.branched), "anyOf")
        number = len(self.merged)
        while (name := f"closed_{number}") in self._taken:
            number += 1
        self._taken.add(name)
        self.merged[name] = {}
        reference = self._references[id(node)] = {"$ref": f"#/$defs/{name}"}
        ways = [self.plain(_with_one_type(flat)) for flat in flats]
        self.merged[name] = ways[0] if len(ways) == 1 else {keyword: ways}
        return reference

    def plain(self, node: Mapping[str, Any]) -> dict[str, Any]:
        """A closed copy of a schema whose keywords need not be merged."""
        found = {key: self._inner(key, value) for key, value in node.items()}
        if "unevaluatedProperties" in found and not _is_joined(node):
            found.setdefault("additionalProperties", found.pop("unevaluatedProperties"))
        given = [found[key] for key in PROPERTIES if key in found]
        if not given or "additionalProperties" in found or not all(map(_is_dict, given)):
            return found
        names, least = found.get("properties", {}), found.get("minProperties", 0)
        if not isinstance(least, int) or least > len(names):
            return found
        required = found.get("required")
        more = [key for key in required if key not in names] if _is_texts(required) else []
        if more and "patternProperties" in found:
            return found
        found["properties"] = {**names, **{key: {} for key in more}}
        return {**found, "additionalProperties": False}

    def _inner(self, key: str, value: Any) -> Any:
        if key in _NAMED and isinstance(value, dict):
            return {name: self.closed(part) for name, part in value.items()}
        if key not in _INNER:
            return value
        if isinstance(value, list):
            return [self.closed(one) for one in value]
        return self.closed(value)


def _is_joined(node: Mapping[str, Any]) -> bool:
    """Whether several schemas that may say something about properties hold for one value here."""
    parts = sum(key in node for key in ("$ref", *BRANCHES))
    parts += len(node["allOf"]) if isinstance(node.get("allOf"), list) else 0
    return parts + any(key in node for key in _OWN) > 1


def _is_dict(value: Any) -> bool:
    return isinstance(value, dict)


def _is_texts(value: Any) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _with_one_type(flat: Flat) -> Flat:
    types = flat.get("type", ())
    return {**flat, "type": types[0]} if len(types) == 1 else flat
