"""Hermes: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, once for each call."""

from __future__ import annotations

import json

from quire.parsers.format import Part, Schemas, ToolFormat
from quire.parsers.grammar import tags
from quire.parsers.json_calls import read_json_call
from quire.parsers.reader import Parse
from quire.parsers.reply import Reply


class HermesCalls(ToolFormat):
    """Nous Hermes, Qwen 2.5 and 3, Granite 4 and many others."""

    markers = ("<tool_call>",)

    def read_calls(self, reply: Reply) -> Parse[bool]:
        """One object, and the closing tag, which may be missing."""
        if not (yield from read_json_call(reply)):
            return False
        yield from reply.reader.skip_space()
        yield from reply.reader.literal("</tool_call>")
        return True

    def grammar(self, tools: Schemas, *, is_parallel: bool) -> Part:
        """Line breaks as Qwen's templates write them."""
        return tags(
            (
                (
                    f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": ',
                    schema,
                    "}\n</tool_call>",
                )
                for name, schema in tools.items()
            ),
            separator="\n" if is_parallel else None,
        )
