"""Harmony, the format of gpt-oss: messages with a header, sent on channels.

`<|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...`. A
message to `functions.f` is a call. Its end mark may be missing, because it stops generation.
"""

from __future__ import annotations

import re

from quire.parsers.events import Reply
from quire.parsers.format import ReasoningTags, ReplyFormat
from quire.parsers.json_text import json_value
from quire.parsers.reader import Emit, Parse
from quire.parsers.tool_format import Schemas, ToolFormat
from quire.structured.tags.parts import (
    Part,
    any_text,
    const,
    either,
    json_schema,
    optional,
    separated,
    sequence,
    star,
    tag,
)

_BEGINS = ("<|start|>", "<|channel|>", "<|message|>", "to=")
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_BODY_ENDS = (*_ENDS, "<|start|>", "<|channel|>")
_CHANNEL = re.compile(r"<\|channel\|>\s{0,8}(\w{1,64})")
_RECIPIENT = re.compile(r"\bto=([^\s<]{1,256})")
_FUNCTIONS = "functions."


class HarmonyCalls(ToolFormat):
    """The calls of gpt-oss. A reply has at most one."""

    other_texts = (*_BEGINS, *_BODY_ENDS, "<|constrain|>")

    def read_calls(self, reply: Reply) -> Parse[bool]:
        """Reads the arguments of a call of the tool that `reply.marker` names.

        JSON ends with its last bracket; any other text ends with the message.
        """
        reader = reply.reader
        reply.begin_call(reply.marker)
        char = yield from reader.skip_space()
        if char in ("{", "["):
            if not (yield from json_value(reader, reply.arguments)):
                return True
        elif (yield from reader.starts_with(*_BODY_ENDS)):
            reply.arguments("{}")
        elif (yield from reader.until(_BODY_ENDS, reply.arguments)) is None:
            return True
        reply.end_call()
        return True

    def grammar(self, tools: Schemas, *, is_parallel: bool) -> Part:  # noqa: ARG002
        """One call, because its end stops generation. The prompt may contain the header's start."""
        begin = "<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"
        calls = [
            tag(begin.replace("{name}", name), json_schema(dict(schema)), "")
            for name, schema in tools.items()
        ]
        start = optional(const("<|start|>assistant"))
        return sequence(start, separated(calls, None))


HARMONY_REASONING = ReasoningTags("<|channel|>analysis<|message|>", "<|end|>")


class HarmonyFormat(ReplyFormat):
    """The reply format of gpt-oss. Messages of one kind are joined with a line break."""

    def literal_texts(self, *, has_tools: bool) -> tuple[str, ...]:
        """The same with and without tools, because a model may also call one without tools."""
        return (*super().literal_texts(has_tools=has_tools), *HarmonyCalls.other_texts)

    def own_form(
        self, calls: Part | None, content: Part | None, *, must_call: bool, is_reasoning: bool
    ) -> Part:
        """Analysis messages, and commentary where text is allowed, then a call or the final
        message."""
        marks = [*_BEGINS[:3], *_ENDS]
        start = optional(const("<|start|>assistant"))
        body = tag("", any_text(marks), "<|end|>")
        channel = either(map(const, ["analysis"] if must_call else ["analysis", "commentary"]))
        before = sequence(start, const("<|channel|>"), channel, const("<|message|>"), body)
        text = content or any_text(marks)
        ways = [] if must_call else [sequence(start, const("<|channel|>final<|message|>"), text)]
        if calls is not None:
            ways.append(calls)
        whole = sequence(star(before), either(ways))
        return sequence(body, whole) if is_reasoning else whole

    def parse(self, reply: Reply, *, has_tools: bool) -> Parse[None]:
        """Reads messages. Without tools, a call becomes content."""
        reader = reply.reader
        content = _Joined(reply.content, reply.content)
        reasoning = content
        if self.reasoning is not None:
            reasoning = _Joined(reply.reasoning, reply.insert_reasoning)
        found: str | None = None
        if reply.is_reasoning and (yield from reader.starts_with(*_BEGINS[:2])) is None:
            found = yield from reader.until(_BODY_ENDS, reasoning.begin())
            if found is None:
                return
        reply.is_reasoning = False
        while True:
            header = yield from _header(reply, found)
            if header is None:
                return
            channel, recipient = _CHANNEL.search(header), _RECIPIENT.search(header)
            if recipient is not None and has_tools and self.tools is not None:
                reply.marker = recipient.group(1).removeprefix(_FUNCTIONS)
                yield from self.tools.read_calls(reply)
                found = yield from reader.until(_BODY_ENDS)
            elif channel is not None and channel.group(1) == "analysis":
                reply.is_reasoning = self.reasoning is not None
                found = yield from reader.until(_BODY_ENDS, reasoning.begin())
                reply.is_reasoning = reply.is_reasoning and found is None
            else:
                found = yield from reader.until(_BODY_ENDS, content.begin())


def _header(reply: Reply, found: str | None) -> Parse[str | None]:
    """Reads the header of a message, which may start with `found`. Returns an empty text if the
    message has no header; None at the end of the reply."""
    reader = reply.reader
    space = ""
    if found is None or found in _ENDS:
        reader.record()
        char = yield from reader.skip_space()
        space = reader.recorded()
        if not char:
            reply.content(space)
            return None
        found = yield from reader.literal(*_BEGINS)
    if found is None:
        reply.content(space)
        return ""
    if found == "<|message|>":
        return found
    parts = [found]
    end = yield from reader.until(("<|message|>", *_ENDS), parts.append)
    if end in _ENDS:
        return (yield from _header(reply, end))
    return None if end is None else "".join(parts)


class _Joined:
    """Joins texts with a line break."""

    def __init__(self, emit: Emit, insert: Emit) -> None:
        """`insert` receives the line breaks, which are not part of the text that was read."""
        self._emit, self._insert = emit, insert
        self._has_text = False
        self._is_next = False

    def begin(self) -> Emit:
        """Return the function that takes the next text."""
        self._is_next = self._has_text
        return self._take

    def _take(self, text: str) -> None:
        if self._is_next:
            self._insert("\n")
            self._is_next = False
        self._has_text = True
        self._emit(text)
