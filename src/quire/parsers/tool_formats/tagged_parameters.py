"""Calls in tags that name the tool and each argument: `<function=f><parameter=k>v</parameter>...`.

Qwen3-Coder, MiniMax M2, DeepSeek V3.2 and others differ only in the names of the tags.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from quire.parsers.arguments.grammar import Layout, calls_part
from quire.parsers.arguments.reading import (
    ValueEnds,
    after_space,
    read_value,
    space_before,
    tag_head,
)
from quire.parsers.arguments.values import ANY, NOT_TEXT, TEXT, Trim, Types
from quire.parsers.arguments.writer import ArgumentsWriter
from quire.parsers.events import Reply
from quire.parsers.json_calls import read_json_call
from quire.parsers.reader import Parse, TextReader
from quire.parsers.tool_format import Schemas, ToolFormat
from quire.structured.tags.parts import Part

_CDATA_END = "]]>"


@dataclass(frozen=True)
class ParameterTags:
    """The tags of a family. A begin tag is written up to the name of the tool or argument."""

    call: tuple[str, ...]
    call_end: str
    parameter: tuple[str, ...]
    parameter_end: str
    sections: tuple[str, ...] = ()
    """Begin tags of sections of calls; a section is optional."""
    section_ends: tuple[str, ...] = ()
    is_section_end_text: bool = False
    """Whether a value may contain the end tag of a section."""
    around: tuple[str, ...] = ()
    """Texts around calls in a section that carry no information."""
    trim: Trim = ""
    unknown: Types = TEXT
    """Types assumed for an argument that the tool does not declare."""
    has_cdata: bool = False
    """Whether a value may be written as `<![CDATA[...]]>`."""

    @property
    def value_ends(self) -> ValueEnds:
        """The texts that end a value."""
        after_call = (*self.section_ends, *self.call, *self.around) if self.sections else ()
        others = {**dict.fromkeys(self.parameter, ()), self.call_end: after_call}
        if not self.is_section_end_text:
            others |= dict.fromkeys(self.section_ends, ())
        after = (*self.parameter, self.call_end, *self.section_ends, *self.call)
        forms = ("{name}>", '"{name}"', "'{name}'")
        return ValueEnds(self.parameter_end, after, others, self.parameter, forms)


def invoke_tags(*sections: str, mark: str = "", **others: Any) -> ParameterTags:
    """The tags of families whose attribute `name` has the name of the tool or argument. `mark`:
    what all of them but those of the sections begin with."""
    return ParameterTags(
        call=(f"<{mark}invoke name=",),
        call_end=f"</{mark}invoke>",
        parameter=(f"<{mark}parameter name=",),
        parameter_end=f"</{mark}parameter>",
        sections=tuple(f"<{name}>" for name in sections),
        section_ends=tuple(f"</{name}>" for name in sections),
        **others,
    )


def invoke_layout(section: str, mark: str = "") -> Layout:
    """Layout of calls in the templates of these families."""
    return Layout(
        call=(f'<{mark}invoke name="{{name}}">\n', f"</{mark}invoke>\n"),
        text=(f'<{mark}parameter name="{{key}}">', f"</{mark}parameter>\n"),
        around=(f"<{section}>\n", f"</{section}>"),
        separator="",
    )


class ParameterCalls(ToolFormat):
    """A family that writes calls in such tags."""

    tags: ParameterTags
    layout: Layout

    def __init_subclass__(cls) -> None:
        tags = cls.tags
        cls.markers = (*tags.sections, *tags.call)
        ends = tags.value_ends
        cls.other_texts = (ends.end, *ends.next, *tags.around)

    def markers_in_reasoning(self) -> tuple[str, ...]:
        """If the family uses sections, a call without one does not end the reasoning."""
        return self.tags.sections or self.markers

    def grammar(self, tools: Schemas, *, is_parallel: bool) -> Part:
        tags = self.tags
        layout = replace(self.layout, ends=tags.value_ends, is_trimmed=tags.trim == "space")
        return calls_part(tools, layout, is_parallel=is_parallel)

    def read_calls(self, reply: Reply) -> Parse[bool]:
        """Reads one call without a section, or all calls of a section; end tags may be missing. An
        empty section is ignored."""
        tags, reader, before = self.tags, reply.reader, reply.num_calls
        is_section = reply.marker in tags.sections
        found: str | None = reply.marker
        if is_section:
            yield from self._skip(reader)
            if (yield from reader.next_char()) == "{":
                return (yield from self._read_json(reply))
            found = yield from reader.literal(*tags.call, *tags.section_ends)
            if found in tags.section_ends:
                return True
        while found in tags.call:
            name, _ = yield from tag_head(reader)
            if not name or any(char.isspace() for char in name):
                return False
            found = yield from self._read_call(reply, self.tool_name(reply, name))
            if found == tags.call_end:
                next_tags = tags.call if is_section else ()
                found = yield from self._after_call(reader, *next_tags, *tags.section_ends)
        return reply.num_calls > before

    def _read_json(self, reply: Reply) -> Parse[bool]:
        """Reads a call in JSON that replaces the tags."""
        if not (yield from read_json_call(reply)):
            return False
        yield from after_space(reply.reader, *self.tags.section_ends)
        return True

    def tool_name(self, reply: Reply, name: str) -> str:  # noqa: ARG002
        """The name of the tool to call, for families that write it differently."""
        return name

    def _read_call(self, reply: Reply, name: str) -> Parse[str | None]:
        """Reads the arguments. Returns the tag that ended the call; None if it was cut short."""
        tags, reader = self.tags, reply.reader
        writer = ArgumentsWriter(reply, name, trim=tags.trim, unknown=tags.unknown)
        ends = (tags.call_end, *tags.section_ends, *tags.call)
        found = yield from reader.until((*ends, *tags.parameter))
        while found in tags.parameter:
            key, attributes = yield from tag_head(reader)
            if key:
                found = yield from self._read_value(reader, writer, key, attributes)
            if not key or found == tags.parameter_end:
                found = yield from reader.until((*ends, *tags.parameter))
        if found is not None:
            writer.end()
        return found

    def _read_value(
        self, reader: TextReader, writer: ArgumentsWriter, key: str, attributes: Mapping[str, str]
    ) -> Parse[str | None]:
        tags = self.tags
        form = writer.form(key, _hint(attributes))
        value, ends = writer.value(key, form), tags.value_ends.of_names(writer.names)
        if tags.has_cdata and (yield from reader.literal("<![CDATA[")):
            value.trim = ""
            while (yield from reader.until((_CDATA_END,), value.take)) is not None:
                space = yield from space_before(reader, *ends.texts)
                if space is None:
                    break
                value.take(_CDATA_END + space)
            found = yield from reader.until(ends.texts)
        else:
            found = yield from read_value(reader, ends, value.take, form.types)
        if found is not None:
            value.end()
        return found

    def _after_call(self, reader: TextReader, *texts: str) -> Parse[str | None]:
        """Reads one of `texts` after a call, skipping the texts of `around` before it."""
        around = self.tags.around
        while (found := (yield from after_space(reader, *texts, *around))) in around:
            pass
        return found

    def _skip(self, reader: TextReader) -> Parse[None]:
        """Skips the texts of `around` before calls."""
        while True:
            yield from reader.skip_space()
            if (yield from reader.literal(*self.tags.around)) is None:
                return


def _hint(attributes: Mapping[str, str]) -> Types:
    """Types that a DeepSeek tag declares for a value. Without the attribute, any type."""
    is_text = attributes.get("string")
    return ANY if is_text is None else TEXT if is_text == "true" else NOT_TEXT
