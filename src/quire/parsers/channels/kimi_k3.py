"""Kimi K3: channels between marks, `<|open|>response<|sep|>...<|close|>response<|sep|>`.

The channels are `think`, `response` and `tools`. A prompt may end within the first or the second.
"""

from __future__ import annotations

import re

from quire.parsers.arguments.grammar import Layout, calls_part, const, sequence, tag
from quire.parsers.arguments.reading import read_value
from quire.parsers.arguments.values import ANY, TEXT, type_named
from quire.parsers.arguments.writer import ArgumentsWriter
from quire.parsers.format import (
    Part,
    ReplyFormat,
    Schemas,
    ToolFormat,
    read_marked_calls,
)
from quire.parsers.reader import Parse, TextReader
from quire.parsers.reply import Reply

_OPEN, _CLOSE, _SEP = "<|open|>", "<|close|>", "<|sep|>"
_CHANNELS = ("think", "response", "message")
_THINK = f"{_OPEN}think{_SEP}"
_ATTRIBUTE = re.compile(r'(\w{1,64})="([^"]{0,512})"')
_VALUE_ENDS = (f"{_CLOSE}argument{_SEP}", f"{_CLOSE}call{_SEP}", f"{_CLOSE}tools{_SEP}")


class KimiK3Calls(ToolFormat):
    """The channel of calls. A tag says the type of each argument; strings are as they are."""

    markers = (f"{_OPEN}tools{_SEP}",)
    layout = Layout(
        call=(f'{_OPEN}call tool="{{name}}" index="1"{_SEP}', f"{_CLOSE}call{_SEP}"),
        text=(f'{_OPEN}argument key="{{key}}" type="{{type}}"{_SEP}', _VALUE_ENDS[0]),
        around=(f"{_OPEN}tools{_SEP}", f"{_CLOSE}tools{_SEP}"),
        separator="",
        excluded=_VALUE_ENDS,
    )

    def read_calls(self, reply: Reply) -> Parse[bool]:
        """Calls up to the end of the channel."""
        reader, before = reply.reader, reply.num_calls
        while True:
            yield from reader.skip_space()
            if (yield from reader.literal(f"{_OPEN}call ")) is None:
                break
            name = (yield from _attributes(reader)).get("tool", "")
            if not name:
                break
            found = yield from _read_arguments(reply, name)
            if found != _VALUE_ENDS[1]:
                return True
        if reply.num_calls > before:
            yield from reader.literal(_VALUE_ENDS[2])
        return reply.num_calls > before

    def grammar(self, tools: Schemas, *, is_parallel: bool) -> Part:
        """The channel of the answer, which comes before and may be open, and that of calls."""
        answer = tag(
            "", {"type": "any_text", "excludes": [_OPEN, _CLOSE]}, f"{_CLOSE}response{_SEP}"
        )
        opened: Part = {"type": "optional", "content": const(f"{_OPEN}response{_SEP}")}
        escaped = {_escaped(name): schema for name, schema in tools.items()}
        return sequence(opened, answer, calls_part(escaped, self.layout, is_parallel=is_parallel))


def _read_arguments(reply: Reply, name: str) -> Parse[str | None]:
    """Reads a call behind its first tag. Returns what ended it; None: it is cut short."""
    reader = reply.reader
    writer = ArgumentsWriter(reply, name)
    begin = f"{_OPEN}argument "
    found = yield from reader.until((begin, *_VALUE_ENDS[1:]))
    while found == begin:
        attributes = yield from _attributes(reader)
        key, kind = attributes.get("key", ""), attributes.get("type", "string")
        types = writer.types(key, TEXT if kind == "string" else type_named(kind) or ANY)
        value = writer.value(key, types)
        found = yield from read_value(reader, _VALUE_ENDS, value.take, types)
        if found is None:
            return None
        value.end()
        if found == _VALUE_ENDS[0]:
            found = yield from reader.until((begin, *_VALUE_ENDS[1:]))
    if found is not None:
        writer.end()
    return found


def _attributes(reader: TextReader) -> Parse[dict[str, str]]:
    """Reads the rest of a tag."""
    parts: list[str] = []
    if (yield from reader.until((_SEP,), parts.append)) is None:
        return {}
    found = _ATTRIBUTE.findall("".join(parts))
    return {key: value.replace("&quot;", '"').replace("&amp;", "&") for key, value in found}


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;")


class KimiK3Format(ReplyFormat):
    """Kimi K3."""

    def literal_texts(self, *, has_tools: bool) -> tuple[str, ...]:
        """With the marks that channels have without tools too."""
        return (*super().literal_texts(has_tools=has_tools), _OPEN, _CLOSE, _SEP)

    def parse(self, reply: Reply, *, has_tools: bool) -> Parse[None]:
        """Reads channels. Text outside of them is part of the answer."""
        markers = [f"{mark}{name}{_SEP}" for mark in (_OPEN, _CLOSE) for name in _CHANNELS]
        tools = self.tools if has_tools else None
        reply.is_reasoning = reply.is_reasoning and self.reasoning is not None
        if tools is not None:
            markers += tools.markers
        while True:
            emit = reply.reasoning if reply.is_reasoning else reply.content
            marker = yield from reply.reader.until(markers, emit)
            if marker is None:
                return
            if reply.is_reasoning and marker[: len(_CLOSE)] == _CLOSE:
                reply.end_reasoning(keeps_space=True)
            reply.is_reasoning = self.reasoning is not None and marker == _THINK
            if tools is not None and marker in tools.markers:
                yield from read_marked_calls(reply, tools, marker)
