"""Reads parts of a reply that begin with a mark: reasoning, and calls of tools."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quire.parsers.events import Reply
    from quire.parsers.reader import Parse
    from quire.parsers.reasoning_tags import ReasoningTags
    from quire.parsers.tool_format import ToolFormat


def read_reasoning(reply: Reply, tags: ReasoningTags, tools: ToolFormat | None) -> Parse[None]:
    """Reads the reasoning after its begin mark, through the end mark."""
    reader = reply.reader
    reply.is_reasoning = True
    calls = tools.markers_in_reasoning() if tools is not None and tags.ends_at_call else ()
    if tags.header:
        yield from reader.literal(tags.header)
    while reply.is_reasoning:
        mark = yield from reader.until((*tags.ends, *calls), reply.reasoning)
        if mark is None or mark in tags.ends:
            reply.end_reasoning(keeps_space=tags.keeps_space)
        elif tools is not None:
            yield from _read_calls_in_reasoning(reply, tags, tools, mark)
    if tags.trims_answer:
        yield from reader.skip_space()


def _read_calls_in_reasoning(
    reply: Reply, tags: ReasoningTags, tools: ToolFormat, marker: str
) -> Parse[None]:
    """Calls end the reasoning. Text that is not a call stays part of it, up to an end mark."""
    text = yield from _try_calls(reply, tools, marker)
    if text is None:
        reply.end_reasoning(keeps_space=False)
        return
    end = min((at for tag in tags.ends if (at := text.find(tag)) >= 0), default=len(text))
    reply.reader.unread(text[end:])
    reply.reasoning(marker + text[:end])


def read_marked_calls(
    reply: Reply, tools: ToolFormat, marker: str, *, is_read: bool = True
) -> Parse[None]:
    """Reads calls at a marker; other text becomes content. `is_read`: the marker was consumed."""
    text = yield from _try_calls(reply, tools, marker, is_read=is_read)
    if text is not None:
        reply.content(marker + text if is_read else text)


def _try_calls(
    reply: Reply, tools: ToolFormat, marker: str, *, is_read: bool = True
) -> Parse[str | None]:
    """Tries to read calls. Returns None if a call has begun, or would have begun if the reply had
    not been cut; otherwise the text that was read."""
    before, reader = reply.num_calls, reply.reader
    reply.marker = marker
    reader.ran_out = False
    reader.record()
    is_call = yield from tools.read_calls(reply)
    text = reader.recorded()
    is_call = is_call or reply.num_calls > before
    if reader.is_cut and reader.ran_out:
        written = (marker if is_read else "") + text + reader.available()
        least = 1 if reply.num_calls else 2
        if is_call or tools.is_call_so_far(written, reply.tools, least):
            reader.drop_rest()
            return None
    return None if is_call else text
