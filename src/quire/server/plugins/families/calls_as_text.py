"""Calls that end reasoning whose end the model did not write, and are text otherwise: what a parser
of reasoning knows of calls."""

from __future__ import annotations

from quire.parsers.format import Part, Schemas, ToolFormat
from quire.parsers.reader import Parse
from quire.parsers.reasoning.tags import ReasoningTags
from quire.parsers.registry import TOOL_FORMATS
from quire.parsers.reply import Reply

_OF_FAMILIES = {
    "glm45": "glm45",
    "granite_thinking_parser": "qwen3_coder",
    "minicpmv": "qwen3_coder",
    "nemotron_v3": "qwen3_coder",
    "qwen3": "qwen3_coder",
}
"""The format of the family's calls, where it has another name than that of the reasoning."""


class CallsAsText(ToolFormat):
    """Where calls begin; nothing of them is read."""

    has_grammar = False

    def __init__(self, markers: tuple[str, ...]) -> None:
        self.markers = markers

    def read_calls(self, reply: Reply) -> Parse[bool]:
        """Ends the reasoning, and passes the marker on as part of the answer."""
        yield from ()
        reply.end_reasoning(keeps_space=True)
        reply.content(reply.marker)
        return True

    def grammar(self, tools: Schemas, *, is_parallel: bool) -> Part:  # noqa: ARG002
        """Any text."""
        return {"type": "any_text"}


def calls_as_text(name: str, tags: ReasoningTags) -> CallsAsText | None:
    """The calls of the family with this reasoning format; None if calls do not end its
    reasoning."""
    format = TOOL_FORMATS.get(_OF_FAMILIES.get(name, name))
    if format is None or not tags.ends_at_call:
        return None
    markers = format().markers_in_reasoning()
    return CallsAsText(markers) if markers else None
