"""`ReplyFormat`: how a family of models writes reasoning and tool calls.

Most formats of calls have markers (`tool_format.py`); a family that works differently replaces
`ReplyFormat` completely.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from quire.parsers.events import Reply
from quire.parsers.marked_parts import read_marked_calls, read_reasoning
from quire.parsers.reader import Parse
from quire.parsers.reasoning_tags import ReasoningTags as ReasoningTags
from quire.structured.tags.parts import Part

if TYPE_CHECKING:
    from quire.parsers.tool_format import ToolFormat


@dataclass(frozen=True)
class ReplyFormat:
    """Reasoning, then an answer that may contain calls. Each part may be missing."""

    reasoning: ReasoningTags | None = None
    tools: ToolFormat | None = None

    def literal_texts(self, *, has_tools: bool) -> tuple[str, ...]:
        """All texts that identify reasoning and calls."""
        tags, tools = self.reasoning, self.tools if has_tools else None
        marks = () if tags is None else (*tags.begins, *tags.ends, tags.header, *tags.answer_marks)
        return (*marks, *(() if tools is None else tools.literal_texts()))

    def own_form(
        self,
        calls: Part | None,  # noqa: ARG002
        content: Part | None,  # noqa: ARG002
        *,
        must_call: bool,  # noqa: ARG002
        is_reasoning: bool,  # noqa: ARG002
    ) -> Part | None:
        """The grammar of a whole reply, for subclasses with their own `parse`. None: `constraint`
        builds it from the tags and markers."""
        return None

    def parse(self, reply: Reply, *, has_tools: bool) -> Parse[None]:
        """Reads a whole reply. `has_tools`: parse calls."""
        tags, tools = self.reasoning, self.tools if has_tools else None
        if tags is not None and tags.is_content:
            reply.content(tags.begin if reply.is_reasoning else "")
            reply.is_reasoning, tags = False, None
        if tags is not None:
            yield from _read_first_reasoning(reply, tags, tools)
        if tools is not None and tools.opening_markers:
            space = yield from _read_space(reply)
            opening = yield from reply.reader.starts_with(*tools.opening_markers)
            reply.reader.drop_cut(tools.opening_markers)
            reply.content(space)
            if opening is not None:
                yield from read_marked_calls(reply, tools, opening, is_read=False)
        yield from _read_answer(reply, tags, tools)


def _read_first_reasoning(
    reply: Reply, tags: ReasoningTags, tools: ToolFormat | None
) -> Parse[None]:
    space = yield from _read_space(reply)
    begin = yield from reply.reader.literal(*tags.begins)
    if begin is None and not reply.is_reasoning:
        if (yield from reply.reader.literal(*tags.ends)) is None:
            reply.content(space)
        return
    if begin is None:
        reply.reasoning(space)
    yield from read_reasoning(reply, tags, tools)


def _read_answer(reply: Reply, tags: ReasoningTags | None, tools: ToolFormat | None) -> Parse[None]:
    bare = () if tools is None else tools.bare_markers
    calls = () if tools is None else tools.markers + bare
    begins = tags.begins if tags is not None and tags.may_repeat else ()
    dropped = () if tags is None else tags.answer_marks
    while True:
        mark = yield from reply.reader.until(
            (*calls, *begins, *dropped), reply.content, least_cut=1 if reply.num_calls else 2
        )
        if mark is None:
            return
        if tools is not None and mark in calls:
            if mark in bare:
                reply.reader.unread(mark)
            yield from read_marked_calls(reply, tools, mark, is_read=mark not in bare)
        elif tags is not None and mark in begins:
            yield from read_reasoning(reply, tags, tools)
        elif tags is not None and tags.trims_answer:
            reply.drop_content_space()
            yield from reply.reader.skip_space()


def _read_space(reply: Reply) -> Parse[str]:
    reply.reader.record()
    yield from reply.reader.skip_space()
    return reply.reader.recorded()
