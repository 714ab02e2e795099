"""Calls as objects and lists without a required mark: their keys identify them."""

from __future__ import annotations

import re

from quire.parsers.json_calls import BARE_KEYS, CallKeys
from quire.parsers.tool_format import MarkedCalls, Schemas


class LlamaCalls(MarkedCalls):
    """Llama 3.1 and 3.2: `{"name": ..., "parameters": {...}}`, separated by `;`."""

    markers: tuple[str, ...] = ("<|python_tag|>",)
    bare_markers = ("{",)
    keys = CallKeys(arguments=("parameters", "arguments"), others=BARE_KEYS.others)
    ends = (";",)
    between = "; "

    def call_patterns(self, tools: Schemas) -> tuple[str, ...]:
        """The first keys of an object identify a call."""
        markers = (re.escape(one) for one in self.markers if one not in self.answer_marks)
        return (*markers, _object_pattern(tools))


class Llama4Calls(LlamaCalls):
    """Llama 4, which puts marks around text before calls."""

    answer_marks = ("<|python_start|>", "<|python_end|>")
    markers = (*LlamaCalls.markers, *answer_marks)


class XlamCalls(MarkedCalls):
    """xLAM 2: a list, alone, in a Markdown fence, or after marks of other families."""

    markers = ("```json", "```", "[TOOL_CALLS]", "<tool_call>")
    bare_markers = ("[",)
    keys = BARE_KEYS
    ends = ("```", "</tool_call>")
    opening, between, closing = "[", ", ", "]"

    def call_patterns(self, tools: Schemas) -> tuple[str, ...]:  # noqa: ARG002
        """An object in a list or after a mark counts as a call by its first key. Later keys are not
        checked, because a grammar cannot express that."""
        keys = "|".join(("name", "arguments", "parameters", *(self.keys.others or ())))
        return (rf'([\[\]>`]|json){_SPACE}\{{{_SPACE}"({keys})"',)


_SPACE = r"[ \t\r\n]*"


def _object_pattern(tools: Schemas) -> str:
    """The beginning of an object with a tool's name or with arguments, after at most one other key.

    The pattern contains no bracket after the first, which limits the number of overlapping matches.
    """

    def key(*names: str) -> str:
        return rf'"({"|".join(names)})"{_SPACE}:{_SPACE}'

    name, arguments = key("name"), key("arguments", "parameters")
    value = rf'"[^"{{]*"{_SPACE},{_SPACE}'
    offered = "|".join(map(re.escape, tools))
    ways = (
        rf'{name}"({offered})"', arguments, rf"{name}{value}{arguments}",
        rf'{key("type", "id")}{value}({name}|{arguments})',
    )  # fmt: skip
    return rf"\{{{_SPACE}({'|'.join(ways)})"
