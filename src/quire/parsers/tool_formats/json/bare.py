"""Objects and lists that no mark has to announce: they are calls by their keys."""

from __future__ import annotations

from quire.parsers.json_calls import BARE_KEYS, CallKeys
from quire.parsers.tool_formats.json.marked import MarkedCalls


class LlamaCalls(MarkedCalls):
    """Llama 3.1, 3.2 and 4: `{"name": ..., "parameters": {...}}`, several with `;` between."""

    markers = ("<|python_tag|>",)
    bare_markers = ("{",)
    keys = CallKeys(arguments=("parameters", "arguments"), others=BARE_KEYS.others)
    ends = (";",)
    between = "; "


class XlamCalls(MarkedCalls):
    """xLAM 2: a list, alone, in a fence of Markdown or behind marks of other families."""

    markers = ("```json", "```", "[TOOL_CALLS]", "<tool_call>")
    bare_markers = ("[",)
    keys = BARE_KEYS
    ends = ("```", "</tool_call>")
    opening, between, closing = "[", ", ", "]"
