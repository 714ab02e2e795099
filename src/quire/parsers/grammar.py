"""Builders for the parts of structural tags that describe calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from quire.parsers.format import Part


def tags(calls: Iterable[tuple[str, Mapping[str, Any], str]], *, separator: str | None) -> Part:
    """One of these calls (text, JSON value of a schema, text), or one or more if there is a
    `separator`."""
    return separated((tag(begin, schema(value), end) for begin, value, end in calls), separator)


def separated(tags: Iterable[Part], separator: str | None) -> Part:
    """One of these tags, or one or more if there is a `separator`."""
    return {
        "type": "tags_with_separator",
        "tags": list(tags),
        "separator": separator or "",
        "at_least_one": True,
        "stop_after_first": separator is None,
    }


def tag(begin: str, content: Part, end: str) -> Part:
    """A text, a part, and a text."""
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def schema(value: Mapping[str, Any]) -> Part:
    """A JSON value of a schema; an object if the schema is empty."""
    return {"type": "json_schema", "json_schema": dict(value) or {"type": "object"}}


def const(value: str) -> Part:
    """A fixed text."""
    return {"type": "const_string", "value": value}


def regex(pattern: str) -> Part:
    """A text that matches the regular expression."""
    return {"type": "regex", "pattern": pattern}


def sequence(*parts: Part) -> Part:
    """These parts in order."""
    return {"type": "sequence", "elements": list(parts)}
