"""Calls in Python syntax: `[f(a=1, b="x"), g()]`, or one per line."""

from __future__ import annotations

import string
from collections.abc import Mapping
from typing import Any

from quire.parsers.arguments.grammar import IDENTIFIER, Key, json_part, object_part
from quire.parsers.arguments.python_literals import python_value
from quire.parsers.arguments.reading import after_space
from quire.parsers.arguments.schemas import ValueSchema
from quire.parsers.arguments.writer import ArgumentsWriter
from quire.parsers.events import Reply
from quire.parsers.reader import Parse, TextReader
from quire.parsers.tool_format import Schemas, ToolFormat
from quire.structured.tags.parts import Part, separated, sequence, tag

_NAME = string.ascii_letters + string.digits + "_.-"
_MOST_NAME = 256


class PythonicCalls(ToolFormat):
    """Llama 3.2 and ToolACE: the answer begins with a list of calls."""

    opening_markers: tuple[str, ...] = ("[",)
    begin, end = "[", "]"
    """Texts around calls in the grammar."""
    separator = ", "
    after: tuple[str, ...] = ()
    """Optional texts after the calls and the bracket."""

    def read_calls(self, reply: Reply) -> Parse[bool]:
        """Reads calls whose brackets are empty or start with an argument name. An empty list
        between marks is ignored."""
        reader, before = reply.reader, reply.num_calls
        if reply.marker in self.opening_markers:
            yield from reader.literal(reply.marker)
        yield from reader.skip_space()
        if reply.marker != "[":
            yield from reader.literal("[")
        if self.markers and (yield from reader.skip_space()) == "]":
            reader.take(1)
            yield from reader.literal(*self.after)
            return True
        while (yield from _read_call(reply)):
            yield from after_space(reader, ",")
            if (yield from reader.skip_space()) == "]":
                break
        if reply.num_calls == before:
            return False
        yield from after_space(reader, "]")
        yield from after_space(reader, *self.after)
        return True

    def grammar(self, tools: Schemas, *, is_parallel: bool) -> Part:
        """Calls whose values are JSON, which the reader of Python literals also accepts."""
        calls = [tag(f"{name}(", _arguments(schema), ")") for name, schema in tools.items()]
        content = separated(calls, self.separator if is_parallel else None)
        return tag(self.begin, content, self.end)


class Llama4PythonicCalls(PythonicCalls):
    """Llama 4, which sometimes writes marks around the list."""

    opening_markers = ("<|python_start|>", "[")
    after = other_texts = ("<|python_end|>",)


class Olmo3Calls(PythonicCalls):
    """Olmo 3: one call per line."""

    markers = ("<function_calls>",)
    opening_markers = ()
    begin, end = "<function_calls>", "</function_calls>"
    separator = "\n"
    after = ("</function_calls>",)


class Lfm2Calls(PythonicCalls):
    """LFM2: the list is between marks. The model may repeat the list, then with only an end
    mark."""

    markers = ("<|tool_call_start|>",)
    opening_markers = ()
    begin, end = "<|tool_call_start|>[", "]<|tool_call_end|>"

    def read_calls(self, reply: Reply) -> Parse[bool]:
        """Reads calls and drops a repeated list."""
        reader, end = reply.reader, "<|tool_call_end|>"
        if not (yield from super().read_calls(reply)):
            return False
        if (yield from reader.literal(end)) is None:
            return True
        if (yield from after_space(reader, "[")):
            parts = ["["]
            if (yield from reader.until((end,), parts.append)) is None:
                reply.content("".join(parts))
        return True


def _read_call(reply: Reply) -> Parse[bool]:
    """Reads one call. Returns False if it is not a call or is cut short."""
    reader = reply.reader
    yield from reader.skip_space()
    name = yield from reader.while_in(_NAME, _MOST_NAME)
    if not name or (yield from reader.skip_space()) != "(":
        return False
    reader.take(1)
    writer: ArgumentsWriter | None = None
    while (yield from reader.skip_space()) != ")":
        key = yield from _key(reader)
        if key is None:
            return False
        writer = writer or ArgumentsWriter(reply, name)
        if not (yield from python_value(reader, writer.member(key), ")")):
            return False
        if (yield from reader.skip_space()) == ",":
            reader.take(1)
    reader.take(1)
    (writer or ArgumentsWriter(reply, name)).end()
    return True


def _key(reader: TextReader) -> Parse[str | None]:
    key = yield from reader.while_in(_NAME, _MOST_NAME)
    if not key or (yield from reader.skip_space()) != "=":
        return None
    reader.take(1)
    return None if (yield from reader.next_char()) == "=" else key


def _arguments(schema: Mapping[str, Any]) -> Part:
    def argument(key: Key, value: ValueSchema) -> Part | None:
        return sequence(key.part("="), json_part(value)) if value.alternatives else None

    return object_part(ValueSchema.of_tool(schema), argument, ", ", key=IDENTIFIER)
