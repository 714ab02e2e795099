"""JSON objects between marks, one by one or in a list. A family is a class that says which marks,
which keys, and what its chat template writes around them."""

from __future__ import annotations

import json
from typing import ClassVar

from quire.parsers.format import Part, Schemas, ToolFormat
from quire.parsers.grammar import const, sequence, tags
from quire.parsers.json_calls import CALL_KEYS, CallKeys, read_end, read_json_calls
from quire.parsers.reader import Parse
from quire.parsers.reply import Reply


class MarkedCalls(ToolFormat):
    """A call or a list of calls behind a marker, and an end mark, which may be missing."""

    ends: ClassVar[tuple[str, ...]] = ()
    """Close what a marker begins."""
    answer_marks: ClassVar[tuple[str, ...]] = ()
    """Markers that begin no call, but stand around an answer: they are dropped, with the white
    space before them."""
    keys: ClassVar[CallKeys] = CALL_KEYS
    """Grammars have the first of each."""
    opening: ClassVar[str] = ""
    before: ClassVar[str] = ""
    between: ClassVar[str] = ""
    after: ClassVar[str] = ""
    closing: ClassVar[str] = ""
    """What is written before the first call, before each, between two, after each and after the
    last."""

    def literal_texts(self) -> tuple[str, ...]:
        """With the ends, which a grammar may leave out."""
        return (*super().literal_texts(), *self.ends)

    def read_calls(self, reply: Reply) -> Parse[bool]:
        """As the class says."""
        if reply.marker in self.answer_marks:
            reply.drop_content_space()
            return True
        if not (yield from read_json_calls(reply, self.keys)):
            return False
        yield from read_end(reply, *self.ends)
        return True

    def grammar(self, tools: Schemas, *, is_parallel: bool) -> Part:
        """As the family's template writes calls."""
        calls = tags(
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
        """A call's object up to the arguments."""
        return f'{{"{self.keys.name[0]}": {json.dumps(name)}, "{self.keys.arguments[0]}": '
