"""Builders of the parts of a structural tag's `format`; `starts` and `grammar` read them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Part = dict[str, Any]


def tag(begin: str, content: Part, end: str) -> Part:
    """A text, a part, and a text."""
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def separated(tags: Iterable[Part], separator: str | None) -> Part:
    """One of these tags, or one or more if there is a `separator`."""
    return {
        "type": "tags_with_separator",
        "tags": list(tags),
        "separator": separator or "",
        "at_least_one": True,
        "stop_after_first": separator is None,
    }


def calls_of(calls: Iterable[tuple[str, Mapping[str, Any], str]], separator: str | None) -> Part:
    """One of these calls (text, schema of the arguments, text), or one or more if there is a
    `separator`."""
    return separated(
        (tag(begin, arguments_of(schema), end) for begin, schema, end in calls), separator
    )


def arguments_of(schema: Mapping[str, Any]) -> Part:
    """A JSON value of a schema; an object if the schema is empty."""
    return json_schema(dict(schema) or {"type": "object"})


def json_schema(schema: Any) -> Part:
    """A JSON value of a schema."""
    return {"type": "json_schema", "json_schema": schema}


def const(value: str) -> Part:
    """A fixed text."""
    return {"type": "const_string", "value": value}


def regex(pattern: str) -> Part:
    """A text that matches the regular expression."""
    return {"type": "regex", "pattern": pattern}


def any_text(excluded: Sequence[str]) -> Part:
    """A text that contains none of these."""
    return {"type": "any_text", "excludes": list(excluded)}


def sequence(*parts: Any) -> Part:
    """These parts in order."""
    return {"type": "sequence", "elements": [*parts]}


def either(parts: Iterable[Part]) -> Part:
    """One of these parts."""
    return {"type": "or", "elements": [*parts]}


def optional(part: Part) -> Part:
    """The part, or nothing."""
    return {"type": "optional", "content": part}


def star(part: Any) -> Part:
    """The part, any number of times."""
    return {"type": "star", "content": part}


def repeat(part: Part, least: int, most: int | None) -> Part:
    """The part, at least and at most so many times."""
    return {"type": "repeat", "content": part, "min": least, "max": most}


def members(
    elements: Iterable[Part],
    optional_at: Iterable[int],
    separator: str,
    *,
    more: Part | None = None,
    begin: str = "",
    end: str = "",
) -> Part:
    """The elements with a separator between them; `optional_at` are the positions of those that
    may be missing. `more`: an element that may follow any number of times. `begin` and `end`: texts
    around all of it, if there is any. An element may end with a free text."""
    part: Part = {
        "type": "members",
        "elements": [*elements],
        "optional": [*optional_at],
        "separator": separator,
    }
    return part | ({"more": more} if more else {}) | {"begin": begin, "end": end}
