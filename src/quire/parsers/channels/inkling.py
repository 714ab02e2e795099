"""Inkling: blocks, each with a mark that says what it is, `<|content_text|>...<|end_message|>`.

Before a block come `<|message_model|>`, which a prompt may end with, and a name that means nothing.
"""

from __future__ import annotations

from quire.parsers.arguments.grammar import const, json_part, separated, sequence, tag
from quire.parsers.arguments.reading import behind_space
from quire.parsers.arguments.values import json_text
from quire.parsers.format import (
    Part,
    ReplyFormat,
    Schemas,
    ToolFormat,
    read_marked_calls,
)
from quire.parsers.json_calls import CallKeys, read_json_call
from quire.parsers.reader import Parse
from quire.parsers.reply import Reply

_HEADER = "<|message_model|>"
_THINKING = "<|content_thinking|>"
_TEXTS = ("<|content_text|>", "<|content_invoke_tool_text|>", "<|content_tool_error|>")
_CALL = "<|content_invoke_tool_json|>"
_ENDS = ("<|end_message|>", "<|content_model_end_sampling|>")
_MARKS = (_HEADER, _THINKING, *_TEXTS, _CALL, *_ENDS)
_MOST_NAME = 256


class InklingCalls(ToolFormat):
    """A block with a call in JSON."""

    markers = (_CALL,)

    def read_calls(self, reply: Reply) -> Parse[bool]:
        """One object, and the mark at the end of the block."""
        keys = CallKeys(arguments=("args", "arguments", "parameters"))
        if not (yield from read_json_call(reply, keys)):
            return False
        yield from behind_space(reply.reader, *_ENDS)
        return True

    def grammar(self, tools: Schemas, *, is_parallel: bool) -> Part:
        """Blocks with calls. The first one's header may be in the prompt."""
        calls = [
            tag(
                f'{_CALL}{{"name":{json_text(name)},"args":',
                json_part(dict(schema), {}),
                f"}}{_ENDS[0]}",
            )
            for name, schema in tools.items()
        ]
        header: Part = {"type": "optional", "content": const(_HEADER)}
        return sequence(header, separated(calls, _HEADER if is_parallel else None))


class InklingFormat(ReplyFormat):
    """Inkling."""

    def parse(self, reply: Reply, *, has_tools: bool) -> Parse[None]:
        """Reads blocks."""
        reader = reply.reader
        marker: str | None = _THINKING if reply.is_reasoning else _HEADER
        while marker is not None:
            if reply.is_reasoning:
                reply.end_reasoning(keeps_space=False)
            reply.is_reasoning = self.reasoning is not None and marker == _THINKING
            if marker == _HEADER:
                marker = yield from _read_header(reply)
                continue
            if marker == _CALL and self.tools is not None and has_tools:
                yield from read_marked_calls(reply, self.tools, marker)
            marker = yield from reader.until(
                _MARKS, reply.reasoning if reply.is_reasoning else reply.content
            )


def _read_header(reply: Reply) -> Parse[str | None]:
    """Reads a name that means nothing. Text that no block follows is content."""
    parts: list[str] = []
    reader, size = reply.reader, 0
    while size < _MOST_NAME:
        char = yield from reader.next_char()
        if not char or char == "<":
            marker = yield from reader.literal(*_MARKS)
            if marker is not None or not char:
                if marker in (None, *_ENDS):
                    reply.content("".join(parts))
                return marker
        parts.append(reader.take(1))
        size += 1
    reply.content("".join(parts))
    return (yield from reader.until(_MARKS, reply.content))
