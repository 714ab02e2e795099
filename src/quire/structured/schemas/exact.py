"""`make_exact`: writes a JSON schema so that llguidance reads it as JSON Schema says.

What the library reads otherwise, and would let through, gets a form that it reads the same; what
JSON Schema does not check at all is left out. What can be neither is refused by name, here or by
the library. Called by `source`, once for a schema.
"""

from __future__ import annotations

from typing import Any

from quire.errors import GrammarError
from quire.structured.params import FIELD
from quire.structured.schemas.formats import ENCODINGS, EXACT_FORMATS, OTHER_FORMATS
from quire.structured.schemas.patterns import rust_pattern
from quire.structured.schemas.places import schemas


def make_exact(schema: dict[str, Any]) -> None:
    """Changes the schema, of checked depth, in place. Raises GrammarError."""
    for path, node in list(schemas(schema)):
        if isinstance(node.get("$ref"), str) and path != "#" and _has_id(node):
            raise GrammarError(
                f"{FIELD}.json: an $id next to a $ref has one meaning in draft 7 and another one "
                f"later (at {path}); leave the $id out",
                parameter=f"{FIELD}.json",
            )
        if node.get("uniqueItems") is False:
            del node["uniqueItems"]
        if isinstance(pattern := node.get("pattern"), str):
            node["pattern"] = rust_pattern(pattern)
        if isinstance(named := node.get("patternProperties"), dict):
            node["patternProperties"] = {rust_pattern(key): part for key, part in named.items()}
        _require(node, ENCODINGS.get(str(node.get("contentEncoding"))))
        if isinstance(name := node.get("format"), str) and name not in OTHER_FORMATS:
            del node["format"]
            _require(node, EXACT_FORMATS.get(name))


def _has_id(node: dict[str, Any]) -> bool:
    return isinstance(node.get("$id"), str) or isinstance(node.get("id"), str)


def _require(node: dict[str, Any], pattern: str | None) -> None:
    """A text has to match the pattern as a whole, whatever else it has to match."""
    if pattern is None:
        return
    whole = f"^(?:{pattern})$"
    if "pattern" not in node:
        node["pattern"] = whole
    elif isinstance(branches := node.get("allOf", []), list):
        node["allOf"] = [*branches, {"pattern": whole}]
