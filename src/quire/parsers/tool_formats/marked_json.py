"""Calls as JSON objects between marks, one by one or in a list. Each family is a class that defines
its marks, its keys, and the text that its chat template writes around them."""

from __future__ import annotations

import json
from typing import ClassVar

from quire.parsers.events import Reply
from quire.parsers.json_calls import CALL_KEYS, CallKeys, read_end, read_json_calls
from quire.parsers.reader import Parse
from quire.parsers.tool_format import Schemas, ToolFormat
from quire.structured.tags.parts import Part, calls_of, const, sequence


class MarkedCalls(ToolFormat):
    """A call or a list of calls after a marker, and an optional end mark."""

    ends: ClassVar[tuple[str, ...]] = ()
    """End marks of calls."""
    answer_marks: ClassVar[tuple[str, ...]] = ()
    """Markers around an answer that begin no call; they are dropped together with the white space
    before them."""
    keys: ClassVar[CallKeys] = CALL_KEYS
    """Accepted keys; grammars use the first of each kind."""
    opening: ClassVar[str] = ""
    before: ClassVar[str] = ""
    between: ClassVar[str] = ""
    after: ClassVar[str] = ""
    closing: ClassVar[str] = ""
    """Texts before the first call, before each call, between calls, after each call, and after the
    last call."""

    def literal_texts(self) -> tuple[str, ...]:
        """Adds the end marks, which a grammar may omit."""
        return (*super().literal_texts(), *self.ends)

    def read_calls(self, reply: Reply) -> Parse[bool]:
        """Reads calls as the attributes of the class describe."""
        if reply.marker in self.answer_marks:
            reply.drop_content_space()
            return True
        if not (yield from read_json_calls(reply, self.keys)):
            return False
        yield from read_end(reply, *self.ends)
        return True

    def grammar(self, tools: Schemas, *, is_parallel: bool) -> Part:
        """Calls as the family's template writes them."""
        calls = calls_of(
            (
                (self.before + self.head(name), schema, "}" + self.after)
                for name, schema in tools.items()
            ),
            separator=self.between if is_parallel else None,
        )
        if not (self.opening or self.closing):
            return calls
        return sequence(const(self.opening), calls, const(self.closing))

    def head(self, name: str) -> str:
        """The object of a call up to its arguments."""
        return f'{{"{self.keys.name[0]}": {json.dumps(name)}, "{self.keys.arguments[0]}": '
