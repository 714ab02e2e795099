"""Objects and lists that no mark has to announce: they are calls by their keys."""

from __future__ import annotations

import re

from quire.parsers.format import Schemas
from quire.parsers.json_calls import BARE_KEYS, CallKeys
from quire.parsers.tool_formats.json.marked import MarkedCalls


class LlamaCalls(MarkedCalls):
    """Llama 3.1, 3.2 and 4: `{"name": ..., "parameters": {...}}`, several with `;` between."""

    markers = ("<|python_tag|>",)
    bare_markers = ("{",)
    keys = CallKeys(arguments=("parameters", "arguments"), others=BARE_KEYS.others)
    ends = (";",)
    between = "; "

    def call_patterns(self, tools: Schemas) -> tuple[str, ...]:
        """An object is a call by its first keys."""
        markers = map(re.escape, self.markers)
        return (*markers, _object_pattern(tools))


class XlamCalls(MarkedCalls):
    """xLAM 2: a list, alone, in a fence of Markdown or behind marks of other families."""

    markers = ("```json", "```", "[TOOL_CALLS]", "<tool_call>")
    bare_markers = ("[",)
    keys = BARE_KEYS
    ends = ("```", "</tool_call>")
    opening, between, closing = "[", ", ", "]"

    def call_patterns(self, tools: Schemas) -> tuple[str, ...]:
        """What is in a list or behind a mark is a call by its first keys."""
        before = "|".join(map(re.escape, (*self.markers, *self.bare_markers)))
        return (rf"({before}){_SPACE}(\[{_SPACE})?{_object_pattern(tools)}",)


_SPACE = r"[ \t\r\n]*"


def _object_pattern(tools: Schemas) -> str:
    """The begin of an object with a tool's name or with arguments, behind keys that a call may
    have."""

    def key(*names: str) -> str:
        return rf'"({"|".join(names)})"{_SPACE}:{_SPACE}'

    name, arguments = key("name"), key("arguments", "parameters")
    other = rf'({key("type", "id", "name")}"[^"]*"{_SPACE},{_SPACE}){{0,3}}'
    names = "|".join(map(re.escape, tools))
    offered = rf'{name}"(({names})"|[^"]*\\)'
    return rf"\{{{_SPACE}{other}({offered}|{arguments})"
