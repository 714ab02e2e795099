"""Calls of PLaMo 3: a tag for each part, and the arguments as JSON."""

from __future__ import annotations

from quire.parsers.arguments.reading import after_space, up_to
from quire.parsers.events import Reply
from quire.parsers.json_text import json_value
from quire.parsers.reader import Parse, TextReader
from quire.parsers.tool_format import Schemas, ToolFormat
from quire.structured.tags.parts import Part, json_schema, separated, tag

_MOST_NAME = 256


def _begin(name: str) -> str:
    return f"<|plamo:begin_tool_{name}:plamo|>"


def _end(name: str) -> str:
    return f"<|plamo:end_tool_{name}:plamo|>"


_JSON = "<|plamo:constrain|>json<|plamo:msg|>"
_HEAD = (
    _begin("request"), _begin("name"), _end("name"), _end("name")[1:], _begin("arguments"),
)  # fmt: skip
"""Marks before the arguments of a call."""


class PlamoCalls(ToolFormat):
    """PLaMo 3."""

    markers = (_begin("requests"),)

    def read_calls(self, reply: Reply) -> Parse[bool]:
        """Reads calls up to the end of the section; end tags may be missing."""
        reader, count = reply.reader, 0
        while (yield from self._next_call(reply)):
            name = yield from up_to(reader, "<", "\n", _MOST_NAME)
            if not name or (yield from reader.literal(_end("name")[1:])) is None:
                break
            yield from reader.skip_space()
            if (yield from reader.literal(_begin("arguments"))) is None:
                break
            yield from reader.literal(_JSON)
            reply.begin_call(name.strip())
            count += 1
            if (yield from reader.skip_space()) == "<":
                reply.arguments("{}")
            elif not (yield from json_value(reader, reply.arguments)):
                break
            reply.end_call()
            yield from after_space(reader, _end("arguments"))
            yield from after_space(reader, _end("request"))
        if count:
            yield from after_space(reader, _end("requests"))
        return count > 0 or self._is_cut(reader)

    def _is_cut(self, reader: TextReader) -> bool:
        """Whether the reply was cut before the arguments of a call; then the rest is consumed and
        its marks are ignored."""
        rest = reader.available()
        if not reader.has_ended or not any(mark.startswith(rest) for mark in _HEAD):
            return False
        reader.take(len(rest))
        return True

    def _next_call(self, reply: Reply) -> Parse[bool]:
        """Reads up to the name of a call. The first tag may be missing."""
        yield from reply.reader.skip_space()
        yield from reply.reader.literal(_begin("request"))
        yield from reply.reader.skip_space()
        return (yield from reply.reader.literal(_begin("name"))) is not None

    def grammar(self, tools: Schemas, *, is_parallel: bool) -> Part:
        calls = [
            tag(
                f"{_begin('request')}{_begin('name')}{name}{_end('name')}"
                f"{_begin('arguments')}{_JSON}",
                json_schema(dict(schema)),
                _end("arguments") + _end("request"),
            )
            for name, schema in tools.items()
        ]
        content = separated(calls, "" if is_parallel else None)
        return tag(_begin("requests"), content, _end("requests"))
