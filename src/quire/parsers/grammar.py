"""Parts of structural tags that formats of calls are made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from quire.parsers.format import Part


def tags(calls: Iterable[tuple[str, Mapping[str, Any], str]], *, separator: str | None) -> Part:
    """One of these calls, each a text, a JSON value of a schema, and a text; one and more of
    them if there is a `separator`."""
    return separated((tag(begin, schema(value), end) for begin, value, end in calls), separator)


def separated(tags: Iterable[Part], separator: str | None) -> Part:
    """One of these tags; one and more of them if there is a `separator`."""
    return {
        "type": "tags_with_separator",
        "tags": list(tags),
        "separator": separator or "",
        "at_least_one": True,
        "stop_after_first": separator is None,
    }


def tag(begin: str, content: Part, end: str) -> Part:
    """A text, a part, a text."""
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def schema(value: Mapping[str, Any]) -> Part:
    """A JSON value of a schema; an object, if the schema says nothing."""
    return {"type": "json_schema", "json_schema": dict(value) or {"type": "object"}}


def const(value: str) -> Part:
    """This text."""
    return {"type": "const_string", "value": value}


def regex(pattern: str) -> Part:
    """A text that matches the expression."""
    return {"type": "regex", "pattern": pattern}


def sequence(*parts: Part) -> Part:
    """These parts, one after the other."""
    return {"type": "sequence", "elements": list(parts)}
