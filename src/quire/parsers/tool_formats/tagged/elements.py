"""Calls of MiniMax M3: arguments are nested elements, with a mark before each tag."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from quire.parsers.arguments.grammar import NamedValues, in_order, json_part, text_part
from quire.parsers.arguments.reading import after_space, tag_head, up_to
from quire.parsers.arguments.values import TEXT, converted, json_text, schema_of_type, types_of
from quire.parsers.arguments.writer import ArgumentsWriter
from quire.parsers.format import Schemas, ToolFormat
from quire.parsers.reader import Parse, TextReader
from quire.parsers.reply import Reply
from quire.structured.tags.parts import Part, const, separated, sequence, tag

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
        """Calls as MiniMax's template writes them."""
        calls = [
            tag(
                f'{_MARK}<invoke name="{name}">\n',
                _members(schema, schema, NamedValues(name)),
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
    schema = reply.tools.get(name, {})
    members = _grouped(root.children)
    for key, elements in members.items():
        writer.member(key)(_value(elements, reply.properties(name).get(key), schema))
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
        elif name.strip() == last.name and len(open_elements) > 1:
            open_elements.pop()
        else:
            last.text.append(f"</{name}>")
    return open_elements[0]


def _grouped(elements: list[_Element]) -> dict[str, list[_Element]]:
    """Group elements by name."""
    groups: dict[str, list[_Element]] = {}
    for element in elements:
        groups.setdefault(element.name, []).append(element)
    return groups


def _value(elements: list[_Element], schema: Any, root: Mapping[str, Any]) -> str:
    """The JSON text of elements with the same name; several become a list."""
    values = [_of_element(element, schema, root) for element in elements]
    return values[0] if len(values) == 1 else f"[{', '.join(values)}]"


def _of_element(element: _Element, schema: Any, root: Mapping[str, Any]) -> str:
    text = "".join(element.text)
    array = schema_of_type("array", schema, root)
    if not element.children:
        types = types_of(schema, root)
        if not text.strip() and "string" not in types and types & {"array", "object"}:
            return "{}" if array is None else "[]"
        return converted(text, types if schema is not None else TEXT)
    if array is not None:
        items = array.get("items")
        return f"[{', '.join(_of_element(one, items, root) for one in element.children)}]"
    inner = schema_of_type("object", schema, root) or {}
    properties, others = inner.get("properties"), inner.get("additionalProperties")
    if not isinstance(properties, Mapping):
        properties = {}
    groups = _grouped(element.children)
    members = [
        f"{json_text(key)}: {_value(group, properties.get(key, others), root)}"
        for key, group in groups.items()
    ]
    if text.strip():
        key = _TEXT_KEY
        while key in groups:
            key = f"${key}"
        members.append(f"{json_text(key)}: {json_text(text)}")
    return f"{{{', '.join(members)}}}"


def _members(schema: Mapping[str, Any], root: Mapping[str, Any], named: NamedValues) -> Part:
    if not isinstance(schema.get("properties"), Mapping) or not schema["properties"]:
        return const("")
    return in_order(schema, lambda key, of: _element_part(key, of, root, named))


def _element_part(key: str, schema: Any, root: Mapping[str, Any], named: NamedValues) -> Part:
    """An element with its value, which is JSON unless it is a string or an object."""
    begin, end = f"{_MARK}<{key}>", f"{_MARK}</{key}>"
    inner = schema_of_type("object", schema, root)
    if "string" in types_of(schema, root):
        content = text_part(schema, (_MARK,))
    elif inner is not None and isinstance(inner.get("properties"), Mapping):
        content = named.part(inner, lambda: sequence(_members(inner, root, named)))
    else:
        content = json_part(schema, root)
    return tag(begin, content, f"{end}\n")
