"""What a family of models writes: `ReplyFormat`, of how it reasons and how it calls tools.

A new format of calls is a `ToolFormat` in `tool_formats/`, with a row in `registry` and its
examples in the tests. Most have markers; what is unlike the others replaces `ReplyFormat` as a
whole.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quire.parsers.reader import Parse
from quire.parsers.reply import Reply

Schemas = Mapping[str, Mapping[str, Any]]
"""Tools by name, each with the JSON schema of its arguments."""
Part = dict[str, Any]
"""A part of a structural tag's `format`, in the types that `structured.structural_tags` knows."""


class ToolFormat(ABC):
    """How calls of tools are written."""

    markers: tuple[str, ...] = ()
    """Each begins a call, or several, wherever it comes in the answer."""
    opening_markers: tuple[str, ...] = ()
    """Begin a call as the first text of the answer alone: bare JSON, a list. Is not read."""
    bare_markers: tuple[str, ...] = ()
    """Each begins a call wherever it comes, and is its first character. Is not read."""

    @abstractmethod
    def read_calls(self, reply: Reply) -> Parse[bool]:
        """Reads the calls behind `reply.marker`, with whatever closes them.

        False if this is no call after all: then no call has begun, and what was read is content.
        """

    def make_id(self, name: str, index: int) -> str | None:  # noqa: ARG002
        """An id for a call for which the model wrote none, where the model reads ids of a certain
        form alone. None: any id will do, and the caller makes it.

        `name`: of the tool. `index`: how many calls the conversation has before this one.
        """
        return None

    @abstractmethod
    def grammar(self, tools: Schemas, *, is_parallel: bool) -> Part:
        """The form of one call, or of one and more if `is_parallel`, of these tools.

        The whole of it, from a marker to what closes the last call. `read_calls` reads all that
        it allows.
        """


@dataclass(frozen=True)
class ReasoningTags:
    """The marks of reasoning that comes before the answer."""

    begin: str
    end: str


@dataclass(frozen=True)
class ReplyFormat:
    """Reasoning, then the answer with calls in it. Each may be missing."""

    reasoning: ReasoningTags | None = None
    tools: ToolFormat | None = None

    def parse(self, reply: Reply, *, has_tools: bool) -> Parse[None]:
        """Reads a whole reply. `has_tools`: calls are looked for."""
        if self.reasoning is not None:
            yield from self._read_reasoning(reply, self.reasoning)
        tools = self.tools if has_tools else None
        markers = () if tools is None else tools.markers + tools.bare_markers
        if tools is not None and tools.opening_markers:
            space = yield from _read_space(reply)
            opening = yield from reply.reader.starts_with(*tools.opening_markers)
            reply.content(space)
            if opening is not None:
                yield from _read_calls(reply, tools, opening, is_read=False)
        while True:
            marker = yield from reply.reader.until(markers, reply.content)
            if marker is None or tools is None:
                return
            is_read = marker not in tools.bare_markers
            if not is_read:
                reply.reader.back(len(marker))
            yield from _read_calls(reply, tools, marker, is_read=is_read)

    def _read_reasoning(self, reply: Reply, tags: ReasoningTags) -> Parse[None]:
        reader = reply.reader
        if not reply.is_reasoning:
            space = yield from _read_space(reply)
            if (yield from reader.literal(tags.begin)) is None:
                reply.content(space)
                return
            reply.is_reasoning = True
        else:
            yield from reader.literal(tags.begin)
        yield from reader.until((tags.end,), reply.reasoning)
        reply.is_reasoning = False


def _read_space(reply: Reply) -> Parse[str]:
    reply.reader.record()
    yield from reply.reader.skip_space()
    return reply.reader.recorded()


def _read_calls(reply: Reply, tools: ToolFormat, marker: str, *, is_read: bool) -> Parse[None]:
    reader, before = reply.reader, reply.num_calls
    reply.marker = marker
    reader.record()
    is_call = yield from tools.read_calls(reply)
    text = reader.recorded()
    if not is_call and reply.num_calls == before:
        reply.content(marker + text if is_read else text)
