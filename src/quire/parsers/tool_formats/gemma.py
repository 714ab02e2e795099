"""Calls of Gemma: `call:f{k:<|"|>text<|"|>,n:1,l:[1,2]}`, similar to JSON without quotes."""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from functools import partial
from itertools import takewhile
from typing import Any

from quire.parsers.arguments.grammar import Key, NamedValues, any_of, json_parts, object_part
from quire.parsers.arguments.reading import after_space, space_before
from quire.parsers.arguments.schemas import ValueSchema, unwritable
from quire.parsers.arguments.strings import string_parts
from quire.parsers.arguments.values import ANY, TEXT, Form, Types, ValueWriter, converted, json_text
from quire.parsers.arguments.writer import ArgumentsWriter
from quire.parsers.events import Reply
from quire.parsers.reader import Emit, Parse, TextReader
from quire.parsers.tool_format import Schemas, ToolFormat
from quire.structured.schemas.resolving import Flat
from quire.structured.schemas.tag_parts import array
from quire.structured.tags.parts import Part, separated, sequence, tag
from quire.structured.tags.texts import expression

_NAME = string.ascii_letters + string.digits + "_-.:/"
_MOST_NAME = 256
_MAX_DEPTH = 64
_ENDS = (",", "}", "]")
_PLAIN_KEY = re.compile(r"[\w.$-]+")
_AFTER_VALUE = (",", "}", "]", ")")
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
        schema = reply.schema_of(name)
        values = _Values(reader, self.quote, self.quoted)
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
        return self._members(ValueSchema.of_tool(schema), NamedValues(name))

    def _members(
        self, value: ValueSchema, named: NamedValues, flats: list[Flat] | None = None
    ) -> Part:
        def member(key: Key, value: ValueSchema) -> Part | None:
            part = self._value(value, named)
            return None if part is None else sequence(key.part(":", self._key), part)

        return object_part(value, member, ",", flats=flats)

    def _key(self, name: str) -> str:
        return name if _PLAIN_KEY.fullmatch(name) else f"{self.quote}{name}{self.quote}"

    def _value(self, value: ValueSchema, named: NamedValues) -> Part | None:
        texts = string_parts(value, [expression(self.quote)], is_apart=True)
        text = any_of(texts)
        ways = [] if text is None else [tag(self.quote, text, self.quote)]
        ways += [part for _, part in json_parts(value, containers=False)]
        for kind, write in (("object", self._object), ("array", self._array)):
            for flat in value.of_type(kind):
                ways.append(named.part(flat, kind, partial(write, value, named, flat)))
        return any_of(ways)

    def _object(self, value: ValueSchema, named: NamedValues, flat: Flat) -> Part:
        return tag("{", self._members(value, named, [flat]), "}")

    def _array(self, value: ValueSchema, named: NamedValues, flat: Flat) -> Part:
        given, rest = flat.get("prefixItems", []), flat.get("items", True)
        first = [self._value(value.inner(one), named) for one in given]
        others = self._value(value.inner(rest), named)
        written = [*takewhile(lambda part: part is not None, first)]
        least = flat.get("minItems", 0)
        if len(written) < len(first) or others is None:
            others = None
            if least > len(written):
                raise unwritable("minItems")
        return array([part for part in written if part], others, least, flat.get("maxItems"))


class FunctionGemmaCalls(GemmaCalls):
    """FunctionGemma: the format of Gemma 4 with other marks."""

    begin, end = "<start_function_call>", "<end_function_call>"
    quote = "<escape>"
    quoted = ANY
    markers = ("<start_function_call>",)
    other_texts = (quote,)


class _Values:
    """Reads the values of one call."""

    def __init__(self, reader: TextReader, quote: str, quoted: Types) -> None:
        self._reader, self._quote, self._quoted = reader, quote, quoted

    def members(
        self, member: Any, schema: ValueSchema | None, closing: str, depth: int
    ) -> Parse[bool]:
        """Reads members up to the closing bracket. `member` returns the receiver of a member's
        value. Returns False if the text is broken or cut short."""
        reader = self._reader
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
            of = None if schema is None else schema.member(key)
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

    def _value(self, emit: Emit, schema: ValueSchema | None, depth: int) -> Parse[bool]:
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
        if (yield from reader.literal(self._quote)):
            types = self._quoted if schema is None else schema.types
            value = ValueWriter(emit, Form(TEXT if "string" in types else types), "")
            while (yield from reader.until((self._quote,), value.take)) is not None:
                if (space := (yield from space_before(reader, *_AFTER_VALUE))) is None:
                    value.end()
                    return True
                value.take(self._quote + space)
            return False
        return (yield from self._word(emit, Form() if schema is None else schema.form))

    def _word(self, emit: Emit, form: Form) -> Parse[bool]:
        """Reads a value without marks, up to the character that ends it, which is not read."""
        parts: list[str] = []
        while True:
            char = yield from self._reader.next_char()
            if not char:
                return False
            if char in ",}])":
                break
            parts.append(self._reader.take(1))
        emit(converted("".join(parts).strip(), form))
        return True

    def _list(self, emit: Emit, schema: ValueSchema | None, depth: int) -> Parse[bool]:
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
            item = None if schema is None else schema.item(count)
            if not (yield from self._value(emit, item, depth)):
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
