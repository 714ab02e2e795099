"""Calls of Gemma: `call:f{k:<|"|>text<|"|>,n:1,l:[1,2]}`, similar to JSON without quotes."""

from __future__ import annotations

import string
from collections.abc import Mapping
from typing import Any

from quire.parsers.arguments.grammar import (
    NamedValues,
    items,
    json_part,
    text_part,
    with_separator,
)
from quire.parsers.arguments.reading import after_space
from quire.parsers.arguments.values import (
    ANY,
    TEXT,
    Types,
    ValueWriter,
    converted,
    json_text,
    schema_of_type,
    types_of,
)
from quire.parsers.arguments.writer import ArgumentsWriter
from quire.parsers.format import Schemas, ToolFormat
from quire.parsers.reader import Emit, Parse, TextReader
from quire.parsers.reply import Reply
from quire.structured.tags.parts import Part, const, separated, sequence, tag

_NAME = string.ascii_letters + string.digits + "_-.:/"
_MOST_NAME = 256
_MAX_DEPTH = 64
_ENDS = (",", "}", "]")
_CLOSING = {"{": "}", "(": ")"}


class GemmaCalls(ToolFormat):
    """Gemma 4. A string is between two marks, but may also be a bare word."""

    begin, end = "<|tool_call>", "<tool_call|>"
    quote = '<|"|>'
    quoted: Types = TEXT
    """Types of a value between marks if the schema gives none."""
    markers: tuple[str, ...] = ("<|tool_call>",)
    other_texts: tuple[str, ...] = (quote,)

    def read_calls(self, reply: Reply) -> Parse[bool]:
        """Reads one call and its end mark, which may be missing. `call` may be missing too. An
        empty pair of marks is ignored."""
        reader = reply.reader
        yield from reader.skip_space()
        begin = yield from reader.literal("call:", ":", self.end)
        if begin in (None, self.end):
            return begin is not None
        yield from reader.skip_space()
        name = yield from reader.while_in(_NAME, _MOST_NAME)
        opening = yield from reader.skip_space()
        if not name or opening not in _CLOSING:
            return False
        reader.take(1)
        writer = ArgumentsWriter(reply, name)
        schema = reply.tools.get(name, {})
        values = _Values(reader, self.quote, self.quoted, schema)
        if (yield from values.members(writer.member, schema, _CLOSING[opening], _MAX_DEPTH)):
            writer.end()
            yield from after_space(reader, self.end)
        return True

    def grammar(self, tools: Schemas, *, is_parallel: bool) -> Part:
        """Calls in which values other than strings are JSON without quoted strings."""
        calls = [
            tag(f"{self.begin}call:{name}{{", self._arguments(name, schema), f"}}{self.end}")
            for name, schema in tools.items()
        ]
        return separated(calls, "" if is_parallel else None)

    def _arguments(self, name: str, schema: Mapping[str, Any]) -> Part:
        named = NamedValues(name)
        return with_separator(schema, ",", lambda key, of: self._argument(key, of, schema, named))

    def _argument(self, key: str, of: Any, root: Mapping[str, Any], named: NamedValues) -> Part:
        return sequence(const(f"{key}:"), self._value(of, root, named))

    def _value(self, schema: Any, root: Mapping[str, Any], named: NamedValues) -> Part:
        types = types_of(schema, root)
        if "string" in types:
            return tag(self.quote, text_part(schema, (self.quote,)), self.quote)
        inner = schema_of_type("object", schema, root)
        if inner is not None:
            return named.part(inner, lambda: self._object(inner, root, named))
        array = schema_of_type("array", schema, root)
        if array is None:
            return json_part(schema, root)
        return named.part(array, lambda: self._array(array, root, named))

    def _object(
        self, schema: Mapping[str, Any], root: Mapping[str, Any], named: NamedValues
    ) -> Part:
        members = with_separator(schema, ",", lambda key, of: self._argument(key, of, root, named))
        return tag("{", members, "}")

    def _array(
        self, schema: Mapping[str, Any], root: Mapping[str, Any], named: NamedValues
    ) -> Part:
        item = self._value(schema.get("items", {}), root, named)
        return tag("[", items(item, ",", schema), "]")


class FunctionGemmaCalls(GemmaCalls):
    """FunctionGemma: the format of Gemma 4 with other marks."""

    begin, end = "<start_function_call>", "<end_function_call>"
    quote = "<escape>"
    quoted = ANY
    markers = ("<start_function_call>",)
    other_texts = (quote,)


class _Values:
    """Reads the values of one call."""

    def __init__(
        self, reader: TextReader, quote: str, quoted: Types, root: Mapping[str, Any]
    ) -> None:
        self._reader, self._quote, self._quoted, self._root = reader, quote, quoted, root

    def members(self, member: Any, schema: Any, closing: str, depth: int) -> Parse[bool]:
        """Reads members up to the closing bracket. `member` returns the receiver of a member's
        value. Returns False if the text is broken or cut short."""
        reader = self._reader
        inner = schema_of_type("object", schema, self._root) or {}
        properties = inner.get("properties")
        while True:
            char = yield from reader.skip_space()
            if char in (closing, ","):
                reader.take(1)
                if char == closing:
                    return True
                continue
            key = yield from self._key()
            if key is None:
                return False
            of = properties.get(key) if isinstance(properties, Mapping) else None
            if not (yield from self._value(member(key), of, depth)):
                return False

    def _key(self) -> Parse[str | None]:
        parts: list[str] = []
        if (yield from self._reader.literal(self._quote)):
            if (yield from self._reader.until((self._quote,), parts.append)) is None:
                return None
            if (yield from self._reader.skip_space()) != ":":
                return None
            self._reader.take(1)
        elif (yield from self._reader.until((":", *_ENDS), parts.append)) != ":":
            return None
        return "".join(parts).strip()

    def _value(self, emit: Emit, schema: Any, depth: int) -> Parse[bool]:
        """Reads one value; passes its JSON text to `emit`."""
        reader = self._reader
        char = yield from reader.skip_space()
        if char in ("{", "[") and depth == 0:
            return False
        if char == "{":
            reader.take(1)
            members = _Members(emit)
            is_whole = yield from self.members(members.member, schema, "}", depth - 1)
            members.end(is_whole=is_whole)
            return is_whole
        if char == "[":
            reader.take(1)
            return (yield from self._list(emit, schema, depth - 1))
        types = types_of(schema, self._root) if schema is not None else None
        if (yield from reader.literal(self._quote)):
            value = ValueWriter(emit, self._quoted if types is None else types, "")
            if (yield from reader.until((self._quote,), value.take)) is None:
                return False
            value.end()
            return True
        return (yield from self._word(emit, ANY if types is None else types))

    def _word(self, emit: Emit, types: Types) -> Parse[bool]:
        """Reads a value without marks, up to the character that ends it, which is not read."""
        parts: list[str] = []
        while True:
            char = yield from self._reader.next_char()
            if not char:
                return False
            if char in ",}])":
                break
            parts.append(self._reader.take(1))
        emit(converted("".join(parts).strip(), types))
        return True

    def _list(self, emit: Emit, schema: Any, depth: int) -> Parse[bool]:
        array = schema_of_type("array", schema, self._root) or {}
        emit("[")
        count = 0
        while True:
            char = yield from self._reader.skip_space()
            if char in ("]", ","):
                self._reader.take(1)
                if char == "]":
                    emit("]")
                    return True
                continue
            if count:
                emit(", ")
            if not (yield from self._value(emit, array.get("items"), depth)):
                return False
            count += 1


class _Members:
    """Writes a JSON object member by member."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._count = 0

    def member(self, key: str) -> Emit:
        """Begin the next member; returns the receiver of its value."""
        self._emit(("{" if not self._count else ", ") + json_text(key) + ": ")
        self._count += 1
        return self._emit

    def end(self, *, is_whole: bool) -> None:
        """Close the object, if it is complete."""
        if is_whole:
            self._emit("}" if self._count else "{}")
