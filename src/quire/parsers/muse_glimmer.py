"""Muse Glimmer and Muse Spark: messages to a recipient, ` to=self<|message|>...<|eom|>`.

Messages to the model itself are reasoning, messages to the user are content, all others are calls.
Of Muse Spark, messages without a recipient are reasoning, `commentary` is content, and messages
to the `developer` are left out.
"""

from __future__ import annotations

import re
from typing import ClassVar

from quire.parsers.arguments.grammar import Layout
from quire.parsers.arguments.values import ANY
from quire.parsers.events import Reply
from quire.parsers.format import ReplyFormat
from quire.parsers.marked_parts import read_marked_calls
from quire.parsers.reader import Parse, ignore
from quire.parsers.tool_formats.tagged_parameters import ParameterCalls, invoke_tags

_START, _MESSAGE = "<|start|>", "<|message|>"
_ENDS = ("<|eom|>", "<|eot|>")
_BODY_ENDS = (*_ENDS, _START)
_SELF, _USER = "self", "user"
_RECIPIENT = re.compile(r"\bto=([A-Za-z0-9_.-]{1,256})")


class MuseGlimmerCalls(ParameterCalls):
    """Calls in tags. For a tool without a group, the name may appear twice, as `f.f`."""

    tags = invoke_tags("atem:function_calls", mark="atem:", unknown=ANY)
    layout = Layout(
        call=(
            f' to={{name}}{_MESSAGE}<atem:function_calls>\n<atem:invoke name="{{name}}">\n',
            "</atem:invoke>\n</atem:function_calls>",
        ),
        text=('<atem:parameter name="{key}">', "</atem:parameter>\n"),
        separator=f"<|eom|>{_START}assistant",
    )

    def tool_name(self, reply: Reply, name: str) -> str:
        """Remove the group from the name if only the short name is a tool."""
        group, _, rest = name.partition(".")
        return group if name not in reply.tools and group == rest and group in reply.tools else name


class MuseCalls(MuseGlimmerCalls):
    """The same of Muse Spark."""


class MuseGlimmerFormat(ReplyFormat):
    """Muse Glimmer. A prompt ends before the recipient, or within a message."""

    content: ClassVar[tuple[str, ...]] = (_USER,)
    """Recipients of messages that are content."""
    unnamed: ClassVar[str] = _USER
    """The recipient of messages that name none."""
    dropped: ClassVar[tuple[str, ...]] = ()
    """Recipients of messages that are left out."""

    def literal_texts(self, *, has_tools: bool) -> tuple[str, ...]:
        """Adds the marks of messages, which occur with and without tools."""
        return (*super().literal_texts(has_tools=has_tools), *_BODY_ENDS, _MESSAGE)

    def parse(self, reply: Reply, *, has_tools: bool) -> Parse[None]:
        """Reads messages. Tags are calls only in messages to tools and before the first message."""
        reader = reply.reader
        found: str | None = None
        if reply.is_reasoning:
            recipient: str | None = _SELF
        else:
            recipient = yield from _recipient(reply, found, self.unnamed)
        while recipient is not None:
            is_call = recipient not in (_SELF, *self.content, *self.dropped)
            tools = self.tools if has_tools and is_call else None
            reply.is_reasoning = recipient == _SELF and self.reasoning is not None
            emit = reply.reasoning if reply.is_reasoning else reply.content
            if recipient in self.dropped or (recipient and tools is not None):
                emit = ignore
            markers = () if tools is None else tools.markers
            found = yield from reader.until((*_BODY_ENDS, *markers), emit)
            while tools is not None and found in tools.markers:
                yield from read_marked_calls(reply, tools, str(found))
                found = yield from reader.until((*_BODY_ENDS, *markers), emit)
            if reply.is_reasoning and found is not None:
                reply.end_reasoning(keeps_space=True)
            if found is None:
                return
            recipient = yield from _recipient(reply, found, self.unnamed)


class MuseFormat(MuseGlimmerFormat):
    """Muse Spark."""

    content = (_USER, "commentary")
    unnamed = _SELF
    dropped = ("developer",)


def _recipient(reply: Reply, found: str | None, unnamed: str) -> Parse[str | None]:
    """Reads the header of the next message, after the end of the last one; returns its recipient.
    Returns an empty text if the reply begins without a header; None at the end of the reply."""
    reader = reply.reader
    reader.record()
    char = yield from reader.skip_space()
    if found != _START:
        begin = yield from reader.literal(_START, _MESSAGE, "to=")
        if begin is None and found is None and char:
            reply.content(reader.recorded())
            return ""
        if begin == _MESSAGE:
            return unnamed
    parts: list[str] = []
    if (yield from reader.until((_MESSAGE,), parts.append)) is None:
        return None
    recipient = _RECIPIENT.search(reader.recorded())
    return unnamed if recipient is None else recipient.group(1)
