"""Calls of Kimi K3: a channel between marks, `<|open|>tools<|sep|>...<|close|>tools<|sep|>`."""

from __future__ import annotations

import re

from quire.parsers.arguments.grammar import Layout, calls_part
from quire.parsers.arguments.reading import ValueEnds, read_value
from quire.parsers.arguments.values import ANY, TEXT, type_named
from quire.parsers.arguments.writer import ArgumentsWriter
from quire.parsers.events import Reply
from quire.parsers.reader import Parse, TextReader
from quire.parsers.tool_format import Schemas, ToolFormat
from quire.structured.tags.parts import Part, const, either, sequence

_OPEN, _CLOSE, _SEP = "<|open|>", "<|close|>", "<|sep|>"
_ATTRIBUTE = re.compile(r'(\w{1,64})="([^"]{0,512})"')
_CALL_ENDS = (f"{_CLOSE}call{_SEP}", f"{_CLOSE}tools{_SEP}")
_ARGUMENT = f"{_OPEN}argument "
_VALUE_ENDS = ValueEnds(
    f"{_CLOSE}argument{_SEP}", (_ARGUMENT, *_CALL_ENDS), dict.fromkeys(_CALL_ENDS, ())
)


class KimiK3Calls(ToolFormat):
    """The channel of calls. Each argument's tag names its type; strings are unquoted."""

    answer_marks = (f"{_OPEN}response{_SEP}", f"{_CLOSE}response{_SEP}", f"{_CLOSE}message{_SEP}")
    markers = (f"{_OPEN}tools{_SEP}", *answer_marks)
    layout = Layout(
        call=(f'{_OPEN}call tool="{{name}}" index="1"{_SEP}', f"{_CLOSE}call{_SEP}"),
        text=(f'{_ARGUMENT}key="{{key}}" type="{{type}}"{_SEP}', _VALUE_ENDS.end),
        around=(f"{_OPEN}tools{_SEP}", f"{_CLOSE}tools{_SEP}"),
        separator="",
        ends=_VALUE_ENDS,
    )

    def read_calls(self, reply: Reply) -> Parse[bool]:
        """Reads calls up to the end of the channel. Marks of other channels are dropped."""
        reader, before = reply.reader, reply.num_calls
        if reply.marker in self.answer_marks:
            return True
        while True:
            yield from reader.skip_space()
            if (yield from reader.literal(f"{_OPEN}call ")) is None:
                break
            name = ((yield from _attributes(reader)) or {}).get("tool", "")
            if not name:
                break
            found = yield from _read_arguments(reply, name)
            if found != _CALL_ENDS[0]:
                return True
        if reply.num_calls > before:
            yield from reader.literal(_CALL_ENDS[1])
        return reply.num_calls > before

    def grammar(self, tools: Schemas, *, is_parallel: bool) -> Part:
        """The channel of calls, optionally after the end of the answer channel, which the prompt
        may open."""
        escaped = {_escaped(name): schema for name, schema in tools.items()}
        calls = calls_part(escaped, self.layout, is_parallel=is_parallel)
        return either([calls, sequence(const(f"{_CLOSE}response{_SEP}"), calls)])


def _read_arguments(reply: Reply, name: str) -> Parse[str | None]:
    """Reads a call after its first tag. Returns the mark that ended it; None if it is cut short."""
    reader = reply.reader
    writer = ArgumentsWriter(reply, name)
    found = yield from reader.until((_ARGUMENT, *_CALL_ENDS))
    while found == _ARGUMENT:
        attributes = yield from _attributes(reader)
        if attributes is None:
            return None
        key, kind = attributes.get("key", ""), attributes.get("type", "string")
        form = writer.form(key, TEXT if kind == "string" else type_named(kind) or ANY)
        value = writer.value(key, form)
        found = yield from read_value(reader, _VALUE_ENDS, value.take, form.types)
        if found is None:
            return None
        value.end()
        if found == _VALUE_ENDS.end:
            found = yield from reader.until((_ARGUMENT, *_CALL_ENDS))
    if found is not None:
        writer.end()
    return found


def _attributes(reader: TextReader) -> Parse[dict[str, str] | None]:
    """Reads the rest of a tag. Returns None if it is cut short."""
    parts: list[str] = []
    if (yield from reader.until((_SEP,), parts.append)) is None:
        return None
    found = _ATTRIBUTE.findall("".join(parts))
    return {key: value.replace("&quot;", '"').replace("&amp;", "&") for key, value in found}


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;")
