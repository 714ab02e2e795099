"""Calls of MiniMax M3: arguments are nested elements, with a mark before each tag."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from quire.parsers.arguments.grammar import Key, NamedValues, any_of, json_parts, object_part
from quire.parsers.arguments.reading import after_space, tag_head, up_to
from quire.parsers.arguments.schemas import ValueSchema
from quire.parsers.arguments.strings import string_parts
from quire.parsers.arguments.values import TEXT, Form, converted, json_text
from quire.parsers.arguments.writer import ArgumentsWriter
from quire.parsers.events import Reply
from quire.parsers.reader import Parse, TextReader
from quire.parsers.tool_format import Schemas, ToolFormat
from quire.structured.schemas.resolving import Flat
from quire.structured.tags.parts import Part, separated, tag
from quire.structured.tags.texts import expression

_MARK = "]<]minimax[>["
_MOST_NAME = 256
_MAX_DEPTH = 128
_END = f"{_MARK}</invoke>"
_TEXT_KEY = "$text"
"""Key for the text of an element that also has child elements."""


@dataclass(slots=True)
class _Element:
    name: str
    text: list[str] = field(default_factory=list)
    children: list[_Element] = field(default_factory=list)
    end: int = 0
    """Number of texts that its parent had when this element ended."""


class MiniMaxM3Calls(ToolFormat):
    """MiniMax M3."""

    markers = (f"{_MARK}<tool_call>", f"{_MARK}<invoke name=")

    def read_calls(self, reply: Reply) -> Parse[bool]:
        """Reads one call, or all calls of a section. Arguments are emitted when a call is
        complete."""
        reader, before = reply.reader, reply.num_calls
        is_section = reply.marker == self.markers[0]
        if is_section:
            yield from reader.skip_space()
            if (yield from reader.literal(self.markers[1])) is None:
                return False
        while True:
            name, _ = yield from tag_head(reader)
            if not name or not (yield from _read_call(reply, name)):
                break
            ends = (f"{_MARK}</tool_call>", *self.markers[1 if is_section else 2 :])
            if (yield from after_space(reader, *ends)) != self.markers[1]:
                break
        return reply.num_calls > before

    def grammar(self, tools: Schemas, *, is_parallel: bool) -> Part:
        calls = [
            tag(
                f'{_MARK}<invoke name="{name}">\n',
                _members(ValueSchema.of_tool(schema), NamedValues(name)),
                f"{_MARK}</invoke>\n",
            )
            for name, schema in tools.items()
        ]
        begin, end = f"{_MARK}<tool_call>\n", f"{_MARK}</tool_call>"
        return tag(begin, separated(calls, "" if is_parallel else None), end)


def _read_call(reply: Reply, name: str) -> Parse[bool]:
    """Reads the elements of a call. Returns False if it is cut short."""
    writer = ArgumentsWriter(reply, name)
    root = yield from _read_elements(reply.reader)
    if root is None:
        return False
    schema = reply.schema_of(name)
    members = _grouped(root.children)
    for key, elements in members.items():
        writer.member(key)(_value(elements, schema.member(key)))
    writer.end()
    return True


def _read_elements(reader: TextReader) -> Parse[_Element | None]:
    """Reads through the end of a call. Returns None if the end does not come. An element nested too
    deeply ends the parsing: its outermost element is dropped, and the rest is skipped."""
    open_elements = [_Element("")]
    while True:
        last = open_elements[-1]
        if (yield from reader.until((_MARK,), last.text.append)) is None:
            return None
        if (yield from reader.literal("</invoke>")):
            break
        begin = yield from reader.literal("</", "<")
        name = None if begin is None else (yield from up_to(reader, ">", "<\n", _MOST_NAME))
        if name is None:
            continue
        if begin == "<" and len(open_elements) > _MAX_DEPTH:
            open_elements[0].children.pop()
            return None if (yield from reader.until((_END,))) is None else open_elements[0]
        if begin == "<":
            element = _Element(name.strip())
            last.children.append(element)
            open_elements.append(element)
            continue
        if name.strip() == last.name and len(open_elements) > 1:
            last.end = len(open_elements[-2].text)
            open_elements.pop()
        elif not _continue_text(last, name):
            last.text.append(f"</{name}>")
    return open_elements[0]


def _continue_text(parent: _Element, name: str) -> bool:
    """Returns whether this end tag ends the last child again: the end tag before was part of its
    text, as what came after it."""
    child = parent.children[-1] if parent.children else None
    if child is None or child.children or child.name != name.strip():
        return False
    child.text += [f"{_MARK}</{name}>", *parent.text[child.end :]]
    del parent.text[child.end :]
    return True


def _grouped(elements: list[_Element]) -> dict[str, list[_Element]]:
    """Group elements by name."""
    groups: dict[str, list[_Element]] = {}
    for element in elements:
        groups.setdefault(element.name, []).append(element)
    return groups


def _value(elements: list[_Element], schema: ValueSchema | None) -> str:
    """The JSON text of elements with the same name; several become a list."""
    values = [_of_element(element, schema) for element in elements]
    return values[0] if len(values) == 1 else f"[{', '.join(values)}]"


def _of_element(element: _Element, schema: ValueSchema | None) -> str:
    text = "".join(element.text)
    form = Form(TEXT) if schema is None else schema.form
    is_array = "array" in form.types
    if not element.children:
        if not text.strip() and "string" not in form.types and form.types & {"array", "object"}:
            return "[]" if is_array else "{}"
        return converted(text, form)
    if is_array and schema is not None:
        items = (_of_element(one, schema.item(index)) for index, one in enumerate(element.children))
        return f"[{', '.join(items)}]"
    groups = _grouped(element.children)
    members = [
        f"{json_text(key)}: {_value(group, None if schema is None else schema.member(key))}"
        for key, group in groups.items()
    ]
    if text.strip():
        key = _TEXT_KEY
        while key in groups:
            key = f"${key}"
        members.append(f"{json_text(key)}: {json_text(text)}")
    return f"{{{', '.join(members)}}}"


def _members(value: ValueSchema, named: NamedValues, flats: list[Flat] | None = None) -> Part:
    def element(key: Key, value: ValueSchema) -> Part | None:
        if key.name is None or value.schema is False:
            return None  # an end tag repeats the name
        begin, end = f"{_MARK}<{key.name}>", f"{_MARK}</{key.name}>\n"
        texts = string_parts(value, [expression(_MARK)], is_apart=False, is_shared=key.is_shared)
        is_mixed = any(text["type"] == "any_text" for text in texts)
        nested = [flat for flat in value.of_type("object") if "properties" in flat]
        ways = [*texts]
        for flat in nested:
            ways.append(named.part(flat, "object", partial(_members, value, named, [flat])))
        if nested:
            left = [flat for flat in value.alternatives if flat not in nested]
            value = value.inner({"anyOf": left} if left else False)
        ways += [part for _, part in json_parts(value, scalars=not is_mixed)]
        content = any_of(ways)
        return None if content is None else tag(begin, content, end)

    return object_part(value, element, "", flats=flats)
