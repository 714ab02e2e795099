"""Builders of the parts of a structural tag's `format`, which `grammar` reads; `after_start`: what
of a part follows a text that it begins with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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


MayCut = Callable[[str, int], bool]
"""Whether a text may be cut in two at a place."""


def after_start(part: Any, start: str, may_cut: MayCut) -> dict[str, Any] | None:
    """The rest of a part after `start`: of its alternatives that begin with it. None if none
    does."""
    if not isinstance(part, Mapping):
        return None
    kind = part.get("type", "tag")
    if kind == "const_string":
        return _shortened(part, "value", start, may_cut)
    if kind == "tag":
        return _shortened(part, "begin", start, may_cut)
    if kind == "sequence":
        first, *others = _items(part, "elements") or [None]
        text = first.get("value") if isinstance(first, Mapping) else None
        if isinstance(text, str) and len(text) < len(start) and start.startswith(text) and others:
            return after_start(sequence(*others), start[len(text) :], may_cut)
        return _joined(after_start(first, start, may_cut), *others)
    if kind == "or":
        return _either(_items(part, "elements"), start, may_cut)
    if kind == "plus":
        one = part.get("content")
        return _joined(after_start(one, start, may_cut), star(one))
    if kind == "tags_with_separator" and part.get("at_least_one"):
        tags = _items(part, "tags")
        first = _either(tags, start, may_cut)
        if part.get("stop_after_first"):
            return first
        separator = {"type": "const_string", "value": part.get("separator")}
        one = sequence(separator, {**part, "stop_after_first": True})
        return _joined(first, star(one))
    return None


def _items(part: Mapping[str, Any], name: str) -> list[Any]:
    value = part.get(name)
    return value if isinstance(value, list) else []


def _shortened(
    part: Mapping[str, Any], name: str, start: str, may_cut: MayCut
) -> dict[str, Any] | None:
    text = part.get(name)
    if not isinstance(text, str) or not text.startswith(start) or not may_cut(text, len(start)):
        return None
    return {"type": "tag", **part, name: text[len(start) :]}


def _either(parts: list[Any], start: str, may_cut: MayCut) -> dict[str, Any] | None:
    rests = [rest for part in parts if (rest := after_start(part, start, may_cut)) is not None]
    return either(rests) if rests else None


def _joined(first: dict[str, Any] | None, *others: Any) -> dict[str, Any] | None:
    return None if first is None else sequence(first, *others)


def first_texts(part: Any) -> list[str]:
    """The literal texts with which a part may begin, each as long as known. Empty if one of its
    alternatives does not begin with a literal text."""
    if not isinstance(part, Mapping):
        return []
    kind = part.get("type", "tag")
    if kind == "tag":
        return [part["begin"]] if part.get("begin") else []
    if kind == "const_string":
        return [part["value"]] if part.get("value") else []
    if kind == "plus":
        return first_texts(part.get("content"))
    if kind == "sequence":
        first, *others = _items(part, "elements") or [None]
        texts = first_texts(first)
        is_text = isinstance(first, Mapping) and first.get("type") == "const_string"
        if not is_text or not others:
            return texts
        more = first_texts(sequence(*others))
        return [text + next_text for text in texts or [""] for next_text in more] or texts
    if kind in ("or", "tags_with_separator"):
        each = [first_texts(one) for one in _items(part, "elements" if kind == "or" else "tags")]
        return [text for texts in each for text in texts] if all(each) else []
    return []
