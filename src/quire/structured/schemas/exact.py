"""`make_exact`: writes a JSON schema so that llguidance reads it as JSON Schema says.

What the library reads otherwise, and would let through, gets a form that it reads the same; what
JSON Schema does not check at all is left out. What can be neither is refused by name, here or by
the library. Called by `source`, once for a schema.
"""

from __future__ import annotations

from typing import Any

from quire.errors import GrammarError
from quire.structured.params import FIELD
from quire.structured.schemas.patterns import rust_pattern
from quire.structured.schemas.places import schemas

_DATE = (
    "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    "|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
)
_OFFSET = "(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_TIME = (
    rf"(?:(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?{_OFFSET}"
    r"|23:59:60(?:\.[0-9]+)?(?:[Zz]|[+-]00:00))"
)
"""Source: RFC 3339, section 5.6. A leap second is the last one of a day in UTC: of the times of
other zones none is taken."""
_CHAR = "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
_FIRST = "(?:[A-Za-z0-9._~!$&'()*+,;=@-]|%[0-9A-Fa-f]{2})"
_HOST = r"(?:(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*|\[[0-9A-Fa-f:.]+\])"
_USER = "(?:[A-Za-z0-9._~!$&'()*+,;=:-]|%[0-9A-Fa-f]{2})*@"
_PATH = (
    f"(?://(?:{_USER})?{_HOST}(?::[0-9]*)?(?:/{_CHAR}*)*"
    f"|/(?:{_CHAR}+(?:/{_CHAR}*)*)?|[A-Za-z][A-Za-z0-9+.-]*:(?:/?{_CHAR}+(?:/{_CHAR}*)*)?"
    f"|{_FIRST}+(?:/{_CHAR}*)*|)"
)
"""Source: RFC 3986, appendix A. A reference with a scheme and an authority: `_URI`."""
_TAIL = rf"(?:\?(?:{_CHAR}|[/?])*)?(?:#(?:{_CHAR}|[/?])*)?"
_URI = f"[A-Za-z][A-Za-z0-9+.-]*://(?:{_USER})?{_HOST}(?::[0-9]*)?(?:/{_CHAR}*)*"
_POINTER = "(?:/(?:[^~/]|~[01])*)*"
_EXACT_FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}[Tt]{_TIME}",
    "uri-reference": f"(?:{_URI}|{_PATH}){_TAIL}",
    "json-pointer": _POINTER,
    "relative-json-pointer": f"(?:0|[1-9][0-9]*)(?:#|{_POINTER})",
}
_OTHER_FORMATS = frozenset({
    "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri",
    "iri", "iri-reference", "idn-email", "idn-hostname", "uri-template", "regex",
})  # fmt: skip
"""Formats of JSON Schema that the library checks, or refuses. Any other format is an annotation."""
_ENCODINGS = {
    "base64": "(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?",
}


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
        _require(node, _ENCODINGS.get(str(node.get("contentEncoding"))))
        if isinstance(name := node.get("format"), str) and name not in _OTHER_FORMATS:
            del node["format"]
            _require(node, _EXACT_FORMATS.get(name))


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
