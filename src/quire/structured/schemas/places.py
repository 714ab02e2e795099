"""Places of the parts of a JSON schema, and names of JSON Schema.

`with_place` adds to an error the place in the schema that it is about: the compiler names only a
keyword or a value; a caller with a large schema needs the place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

ANNOTATIONS = frozenset({
    "$schema", "$id", "$comment", "$defs", "definitions", "title", "description", "default",
    "examples", "deprecated", "readOnly", "writeOnly", "x-guidance",
})  # fmt: skip
"""Keywords that check nothing."""
DEFINITIONS = ("$defs", "definitions")
TYPE_NAMES = {
    "str": "string", "text": "string", "varchar": "string", "char": "string", "enum": "string",
    "int": "integer", "long": "integer", "short": "integer", "unsigned": "integer",
    "float": "number", "double": "number", "bool": "boolean", "binary": "boolean",
    "dict": "object", "map": "object", "list": "array", "arr": "array", "sequence": "array",
}  # fmt: skip
"""JSON Schema's types by other names that occur in schemas."""
_KEYWORDS = re.compile(r'Unimplemented keys: (\["[^\]]*\])')
_VALUES = {
    "format": re.compile(r"Unknown format: (.+)"),
    "type": re.compile(r"Invalid type: (.+)"),
    "$ref": re.compile(r"Resource '.*/([^/']+)' is not present"),
}
_NAMED = frozenset({
    "properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies",
})  # fmt: skip
"""Keywords whose objects have names, not keywords."""


def with_place(message: str, schema: Any) -> str:
    """The message with the place as a JSON pointer, if the place can be found."""
    keywords: set[str] = set()
    if found := _KEYWORDS.search(message):
        keywords = set(json.loads(found[1]))
    for path, node in schemas(schema):
        is_it = bool(keywords & node.keys())
        for keyword, pattern in _VALUES.items():
            if value := pattern.search(message):
                is_it = is_it or str(node.get(keyword, "")).endswith(value[1])
        if is_it:
            return f"{message} (at {path})"
    return message


def type_of(value: Any) -> str:
    """The type of a JSON value."""
    if isinstance(value, bool):
        return "boolean"
    kinds = {str: "string", int: "integer", float: "number", list: "array", dict: "object"}
    return kinds.get(type(value), "null")


def schemas(value: Any, path: str = "#") -> Iterator[tuple[str, dict[str, Any]]]:
    """All schemas within one, whose depth is bounded, with their places."""
    if isinstance(value, list):
        for index, part in enumerate(value):
            yield from schemas(part, f"{path}/{index}")
    if not isinstance(value, dict):
        return
    yield path, value
    for key, part in value.items():
        if key in _NAMED and isinstance(part, dict):
            for name, schema in part.items():
                escaped = name.replace("~", "~0").replace("/", "~1")
                yield from schemas(schema, f"{path}/{key}/{escaped}")
        elif key not in ("enum", "const", "default", "examples"):
            yield from schemas(part, f"{path}/{key}")
