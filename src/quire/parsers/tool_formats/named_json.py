"""Calls with the tool's name between special tokens, and the arguments as JSON.

Calls are in a section. The marks of sections are dropped wherever they occur, so that calls outside
of a section are read too.
"""

from __future__ import annotations

import re
from typing import ClassVar

from quire.parsers.events import Reply
from quire.parsers.json_calls import read_end, read_name, read_named_call
from quire.parsers.reader import Parse
from quire.parsers.tool_format import Schemas, ToolFormat
from quire.structured.tags.parts import (
    Part,
    arguments_of,
    calls_of,
    const,
    either,
    regex,
    separated,
    sequence,
    tag,
)


class DeepSeekV31Calls(ToolFormat):
    """DeepSeek V3.1: `f<｜tool▁sep｜>{...}` between the marks of a call."""

    markers = ("<｜tool▁call▁begin｜>", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
    middle: ClassVar[str] = "{}<｜tool▁sep｜>"
    """Text between the begin mark of a call and its arguments. The braces stand for the name."""
    after: ClassVar[str] = "<｜tool▁call▁end｜>"
    between: ClassVar[str] = ""

    def read_calls(self, reply: Reply) -> Parse[bool]:
        """Reads one call. Its arguments may be in a Markdown fence."""
        if reply.marker != self.markers[0]:
            return True
        reader = reply.reader
        name = yield from self.read_name(reply)
        if not name:
            return False
        yield from reader.skip_space()
        yield from reader.literal("```json", "```")
        yield from read_named_call(reply, name, "```", "<｜tool▁call▁end｜>")
        yield from reader.skip_space()
        yield from reader.literal("```")
        yield from read_end(reply, "<｜tool▁call▁end｜>")
        return True

    def read_name(self, reply: Reply) -> Parse[str]:
        """Reads the tool's name; empty if the text is not a call."""
        name = yield from read_name(reply.reader, "<｜tool▁sep｜>")
        return name if (yield from reply.reader.literal("<｜tool▁sep｜>")) else ""

    def grammar(self, tools: Schemas, *, is_parallel: bool) -> Part:
        begin, opening, closing = self.markers
        calls = (
            (begin + self.middle.format(name), arguments, self.after)
            for name, arguments in tools.items()
        )
        return sequence(
            const(opening),
            calls_of(calls, separator=self.between if is_parallel else None),
            const(closing),
        )


class DeepSeekV3Calls(DeepSeekV31Calls):
    """DeepSeek V3 and R1: a type precedes the name, and the arguments are always in a fence."""

    middle = "function<｜tool▁sep｜>{}\n```json\n"
    after = "\n```<｜tool▁call▁end｜>"
    between = "\n"

    def read_name(self, reply: Reply) -> Parse[str]:
        """Reads the type and the name after it."""
        if not (yield from super().read_name(reply)):
            return ""
        name = yield from read_name(reply.reader, "```", "{", "<｜tool▁call▁end｜>")
        return name if (yield from reply.reader.next_char()) else ""


_KIMI_ID = re.compile(r"(?:functions\.)?(.+):\d{1,9}")


class KimiK2Calls(ToolFormat):
    """Kimi K2: the id `functions.f:0` contains the name. The id is kept, because the model reads it
    again."""

    markers = (
        "<|tool_call_begin|>", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>",
    )  # fmt: skip

    def read_calls(self, reply: Reply) -> Parse[bool]:
        """Reads one call. An id without a number counts only if it names an offered tool."""
        if reply.marker != self.markers[0]:
            return True
        separator = "<|tool_call_argument_begin|>"
        call_id = yield from read_name(reply.reader, separator)
        if (yield from reply.reader.literal(separator)) is None:
            return False
        found = _KIMI_ID.fullmatch(call_id)
        name = found[1] if found else call_id.removeprefix("functions.")
        if not found and name not in reply.tools:
            return False
        end = "<|tool_call_end|>"
        yield from read_named_call(reply, name, end, call_id=call_id if found else None)
        yield from read_end(reply, end)
        return True

    def make_id(self, name: str, index: int) -> str:
        """An id in the form that the model writes."""
        return f"functions.{name}:{index}"

    def grammar(self, tools: Schemas, *, is_parallel: bool) -> Part:
        """A section with calls, which the model numbers."""
        begin, opening, closing = self.markers
        middle = (regex("[0-9]{1,3}"), const("<|tool_call_argument_begin|>"))
        calls = (
            tag(
                f"{begin}functions.{name}:",
                sequence(*middle, arguments_of(arguments)),
                "<|tool_call_end|>",
            )
            for name, arguments in tools.items()
        )
        return sequence(
            const(opening), separated(calls, "" if is_parallel else None), const(closing)
        )


class SolarOpenCalls(ToolFormat):
    """Solar Open: an id, the name and the arguments of each call, after the mark of a message."""

    answer_marks = ("<|begin|>assistant", "<|content|>", "<|end|>")
    markers = ("<|tool_call:begin|>", "<|tool_calls|>", "<|calls|>", *answer_marks)

    def read_calls(self, reply: Reply) -> Parse[bool]:
        if reply.marker != self.markers[0]:
            return True
        call_id = yield from read_name(reply.reader, "<|tool_call:name|>")
        if (yield from reply.reader.literal("<|tool_call:name|>")) is None:
            return False
        name = yield from read_name(reply.reader, "<|tool_call:args|>")
        if not name or (yield from reply.reader.literal("<|tool_call:args|>")) is None:
            return False
        yield from read_named_call(reply, name, "<|tool_call:end|>", call_id=call_id or None)
        yield from read_end(reply, "<|tool_call:end|>")
        return True

    def markers_in_reasoning(self) -> tuple[str, ...]:
        """The marks of calls alone: the mark that ends reasoning also ends answers."""
        return self.markers[:2]

    def grammar(self, tools: Schemas, *, is_parallel: bool) -> Part:
        """Calls with random ids. After reasoning, they are in a message of their own."""
        calls = (
            tag(
                "<|tool_call:begin|>",
                sequence(
                    regex("[a-z0-9]{10}"),
                    const(f"<|tool_call:name|>{name}<|tool_call:args|>"),
                    arguments_of(arguments),
                ),
                "<|tool_call:end|>",
            )
            for name, arguments in tools.items()
        )
        opening = either((const("<|tool_calls|>"), const("<|begin|>assistant<|tool_calls|>")))
        return sequence(opening, separated(calls, "" if is_parallel else None))
