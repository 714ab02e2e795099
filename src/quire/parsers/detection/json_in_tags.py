"""A format derived from a template: the tool's name and JSON arguments between marks.

The marks are derived from how a chat template renders one call, another, and both together.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quire.parsers.detection.conversations import Call
from quire.parsers.detection.shared_text import shared_begin, shared_end
from quire.parsers.events import Reply
from quire.parsers.json_calls import CallKeys, read_json_call
from quire.parsers.json_text import json_value
from quire.parsers.reader import Parse
from quire.parsers.tool_format import Schemas, ToolFormat
from quire.structured.tags.parts import Part, calls_of, tag

_MAX_NAME_CHARS = 512
"""Maximum length of a tool name."""


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks around calls. Marks that only several calls have may be empty."""

    begin_all: str
    begin: str
    name_end: str | None
    """Text between name and arguments; None: a call is one JSON object that holds both."""
    end: str
    between: str
    end_all: str
    name_key: str = "name"
    arguments_key: str = "arguments"


class JsonInTags(ToolFormat):
    """Reads calls between marks."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self._first = (marks.begin_all + marks.begin).strip()
        self.markers = (self._first,)

    def __str__(self) -> str:
        marks = self._marks
        inside = "{...}" if marks.name_end is None else f"NAME{marks.name_end}{{...}}"
        return repr(f"{marks.begin_all}{marks.begin}{inside}{marks.end}{marks.end_all}")

    def read_calls(self, reply: Reply) -> Parse[bool]:
        """Reads calls until no other one follows, then the closing mark, which may be missing."""
        marks, reader = self._marks, reply.reader
        if not (yield from self._read_call(reply)):
            return False
        begin, between = marks.begin.strip(), marks.between.strip()
        while True:
            char = yield from reader.skip_space()
            if between and (yield from reader.literal(between)) is None:
                break
            yield from reader.skip_space()
            if begin and (yield from reader.literal(begin)) is None:
                break
            if not (begin or between or char == "{"):
                break
            if not (yield from self._read_call(reply)):
                return True
        yield from reader.skip_space()
        if marks.end_all.strip():
            yield from reader.literal(marks.end_all.strip())
        return True

    def _read_call(self, reply: Reply) -> Parse[bool]:
        """Reads one call and the mark after it, which may be missing."""
        marks, reader = self._marks, reply.reader
        if marks.name_end is None:
            keys = CallKeys((marks.name_key,), (marks.arguments_key,))
            if not (yield from read_json_call(reply, keys)):
                return False
        else:
            name = yield from _read_name(reply, marks.name_end)
            if not name:
                return False
            reply.begin_call(name)
            if not (yield from json_value(reader, reply.arguments)):
                return True
            reply.end_call()
        yield from reader.skip_space()
        if marks.end.strip():
            yield from reader.literal(marks.end.strip())
        return True

    def grammar(self, tools: Schemas, *, is_parallel: bool) -> Part:
        marks = self._marks
        calls = [self._call(name, schema) for name, schema in tools.items()]
        space = marks.begin[: len(marks.begin) - len(marks.begin.lstrip())]
        form = calls_of(calls, separator=marks.between + space if is_parallel else None)
        if not (marks.begin_all or marks.end_all):
            return form
        return tag(marks.begin_all.lstrip() + space, form, marks.end_all)

    def _call(self, name: str, schema: Mapping[str, Any]) -> tuple[str, Mapping[str, Any], str]:
        marks, begin = self._marks, self._marks.begin.lstrip()
        if marks.name_end is not None:
            return begin + name + marks.name_end, schema, marks.end
        keys = json.dumps(marks.name_key), json.dumps(marks.arguments_key)
        head = f"{{{keys[0]}: {json.dumps(name)}, {keys[1]}: "
        return begin + head, schema, "}" + marks.end


def _read_name(reply: Reply, end: str) -> Parse[str]:
    """Reads a name up to the mark that ends it; empty if no such mark comes."""
    reader = reply.reader
    yield from reader.skip_space()
    parts: list[str] = []
    mark, length = end.strip() or "{", 0
    while length < _MAX_NAME_CHARS:
        found = yield from reader.starts_with(mark)
        if found is not None:
            if end.strip():
                reader.take(len(mark))
            return "".join(parts).strip()
        char = yield from reader.next_char()
        if not char:
            break
        parts.append(reader.take(1))
        length += 1
    return ""


def json_in_tags(
    one: str, other: str, both: str | None, first: Call, second: Call
) -> JsonInTags | None:
    """Derive the format from a text with one call, one with another call, and one with both; None
    if they are not JSON between marks."""
    head, tail = _split(one, first), _split(other, second)
    if head is None or tail is None or head.shape != tail.shape:
        return None
    begin, end = head.before, head.after
    if not any(char.isalpha() for char in begin):
        return None  # a mark of brackets alone occurs in ordinary text
    if both is None:
        return JsonInTags(head.marks("", begin, end, "", ""))
    separator = _separator(both, head, tail)
    if separator is None:
        return JsonInTags(head.marks("", begin, end, "", ""))
    call_end = _whole_marks(shared_begin(end, separator))
    rest = separator[len(call_end) :]
    call_begin = shared_end(begin, rest)
    between = rest[: len(rest) - len(call_begin)]
    return JsonInTags(
        head.marks(
            begin[: len(begin) - len(call_begin)], call_begin, call_end, between,
            end[len(call_end) :],
        )
    )  # fmt: skip


def _whole_marks(text: str) -> str:
    """The text without the beginning of a mark at its end."""
    for begin, end in ("<>", "[]"):
        if text.rfind(begin) > text.rfind(end):
            text = text[: text.rfind(begin)]
    return text


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of a text with one call."""

    before: str
    inside: str
    after: str
    shape: tuple[str | None, str, str]
    """The text that ends the name, and the keys of the object."""

    def marks(self, begin_all: str, begin: str, end: str, between: str, end_all: str) -> Marks:
        name_end, *keys = self.shape
        return Marks(
            begin_all, begin, name_end, end, between, end_all, *(key or "" for key in keys)
        )


def _split(text: str, call: Call) -> _Parts | None:
    decoder, place = json.JSONDecoder(), text.find("{")
    while place >= 0:
        try:
            value, end = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            place = text.find("{", place + 1)
            continue
        if value == call.arguments:
            name = text.rfind(call.name, 0, place)
            if name < 0:
                return None
            name_end = text[name + len(call.name) : place]
            shape = (name_end, "", "")
            return _Parts(text[:name], text[name:end], text[end:], shape)
        keys = _keys(value, call)
        if keys is not None:
            return _Parts(text[:place], text[place:end], text[end:], (None, *keys))
        place = text.find("{", place + 1)
    return None


def _keys(value: Any, call: Call) -> tuple[str, str] | None:
    """The keys of the call's name and its arguments in an object."""
    if not isinstance(value, dict):
        return None
    names = [key for key, inner in value.items() if inner == call.name]
    arguments = [key for key, inner in value.items() if inner == call.arguments]
    return (names[0], arguments[0]) if len(names) == len(arguments) == 1 else None


def _separator(both: str, head: _Parts, tail: _Parts) -> str | None:
    begin = both.find(head.inside)
    if begin < 0:
        return None
    end = both.find(tail.inside, begin + len(head.inside))
    return None if end < 0 else both[begin + len(head.inside) : end]
