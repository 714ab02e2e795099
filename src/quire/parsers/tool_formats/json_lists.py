"""One mark for all calls, and a list of objects: `<tool_calls>[{"name": ...}]</tool_calls>`."""

from __future__ import annotations

import json

from quire.parsers.events import Reply
from quire.parsers.json_calls import CallKeys, read_arguments, read_end
from quire.parsers.json_text import json_elements, json_members
from quire.parsers.reader import Parse
from quire.parsers.tool_format import MarkedCalls, Schemas
from quire.structured.tags.parts import (
    Part,
    arguments_of,
    const,
    either,
    regex,
    separated,
    sequence,
    tag,
)


class GraniteCalls(MarkedCalls):
    """Granite 3: a special token in 3.0, a text from 3.1 on."""

    markers = ("<|tool_call|>", "<tool_call>")
    ends = ("</tool_call>",)
    between, closing = ", ", "]"

    def grammar(self, tools: Schemas, *, is_parallel: bool) -> Part:
        """The list after either mark."""
        begin = either(const(f"{marker}[") for marker in self.markers)
        return sequence(begin, super().grammar(tools, is_parallel=is_parallel))


class JambaCalls(MarkedCalls):
    """Jamba 1.5 and 1.6."""

    markers = ("<tool_calls>",)
    ends = ("</tool_calls>",)
    opening, between, closing = "<tool_calls>[", ", ", "]</tool_calls>"


class HunyuanCalls(JambaCalls):
    """Hunyuan A13B, whose reply may begin with the name of its role."""

    opening_markers = ("助手：",)

    def read_calls(self, reply: Reply) -> Parse[bool]:
        """Drops the name of the role."""
        if reply.marker in self.opening_markers:
            return (yield from reply.reader.literal(reply.marker)) is not None
        return (yield from super().read_calls(reply))


class Phi4MiniCalls(MarkedCalls):
    """Phi-4 mini: the mark is an ordinary word, which begins a call only before a bracket."""

    markers = ("functools",)
    opening, between, closing = "functools[", ", ", "]"

    def call_patterns(self, tools: Schemas) -> tuple[str, ...]:  # noqa: ARG002
        """The word with a bracket, because the word alone is also a Python module."""
        return (r"functools[ \t\r\n]*[\[{]",)


class CohereCalls(MarkedCalls):
    """Command R7B and A, which number their calls and write the answer between marks."""

    answer_marks = (
        "<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>",
    )  # fmt: skip
    markers = ("<|START_ACTION|>", *answer_marks)
    ends = ("<|END_ACTION|>",)
    keys = CallKeys(("tool_name", "name"), ("parameters", "arguments"), ("tool_call_id",))

    def grammar(self, tools: Schemas, *, is_parallel: bool) -> Part:
        """A section of calls with a number each, which a schema cannot express."""
        calls = separated(
            (
                tag(
                    '{"tool_call_id": "',
                    sequence(
                        regex("[0-9]{1,3}"),
                        const(f'", "tool_name": {json.dumps(name)}, "parameters": '),
                        arguments_of(arguments),
                    ),
                    "}",
                )
                for name, arguments in tools.items()
            ),
            ", " if is_parallel else None,
        )
        return sequence(const("<|START_ACTION|>["), calls, const("]<|END_ACTION|>"))


class ApertusCalls(MarkedCalls):
    """Apertus: the tool's name is the key, `[{"f": {...}}]`."""

    markers = ("<|tools_prefix|>",)
    ends = ("<|tools_suffix|>",)
    opening, between, closing = "<|tools_prefix|>[", ", ", "]<|tools_suffix|>"

    def head(self, name: str) -> str:
        """The beginning of a call: its name as the key."""
        return f"{{{json.dumps(name)}: "

    def read_calls(self, reply: Reply) -> Parse[bool]:
        """Reads each key as a call."""
        reader, before = reply.reader, reply.num_calls

        def member(name: str) -> Parse[bool]:
            if not name or (yield from reader.skip_space()) not in ("{", "n"):
                return False
            reply.begin_call(name)
            is_whole = yield from read_arguments(reader, reply.arguments)
            if is_whole:
                reply.end_call()
            return is_whole

        if (yield from reader.skip_space()) == "[":
            yield from json_elements(reader, lambda: json_members(reader, member))
        else:
            yield from json_members(reader, member)
        if reply.num_calls == before:
            return False
        yield from read_end(reply, *self.ends)
        return True
