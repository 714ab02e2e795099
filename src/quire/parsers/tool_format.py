"""`ToolFormat`: how a model writes calls of tools; `MarkedCalls`: as JSON objects between marks.

A new format is a module of `tool_formats/`, with a row in `registry` and examples in the tests.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from quire.parsers.events import Reply
from quire.parsers.json_calls import CALL_KEYS, CallKeys, read_end, read_json_calls
from quire.parsers.reader import Parse
from quire.structured.tags.parts import Part, calls_of, const, first_texts, sequence

Schemas = Mapping[str, Mapping[str, Any]]
"""Tools by name, each with the JSON schema of its arguments."""


class ToolFormat(ABC):
    """A format of tool calls."""

    markers: tuple[str, ...] = ()
    """Texts that begin one or more calls anywhere in the answer."""
    opening_markers: tuple[str, ...] = ()
    """Texts that begin a call only at the start of the answer (bare JSON, a list). They are left
    unread for `read_calls`."""
    bare_markers: tuple[str, ...] = ()
    """First characters that may begin a call anywhere. They are left unread for `read_calls`."""

    answer_marks: ClassVar[tuple[str, ...]] = ()
    """Markers around an answer that begin no call; they are dropped."""
    has_grammar: ClassVar[bool] = True
    """Whether `grammar` describes the calls."""
    other_texts: tuple[str, ...] = ()
    """Texts that `read_calls` looks for in addition to the markers and the texts of `grammar`."""

    def markers_in_reasoning(self) -> tuple[str, ...]:
        """The markers that end reasoning if the model did not write the end mark."""
        return self.markers

    @abstractmethod
    def read_calls(self, reply: Reply) -> Parse[bool]:
        """Reads the calls after `reply.marker`, including their end marks.

        Returns False if the text is not a call. Then no call has begun, and the text becomes
        content.
        """

    def make_id(self, name: str, index: int) -> str | None:  # noqa: ARG002
        """An id for a call without one, if the model accepts only ids of a certain form. None: any
        id is accepted, and the caller makes it.

        `name`: the tool. `index`: number of calls in the conversation before this one.
        """
        return None

    @abstractmethod
    def grammar(self, tools: Schemas, *, is_parallel: bool) -> Part:
        """The grammar of one call of these tools, or of one or more if `is_parallel`.

        It covers everything from a marker to the end mark of the last call. `read_calls` must be
        able to read every text that the grammar allows.
        """

    def call_patterns(self, tools: Schemas) -> tuple[str, ...]:  # noqa: ARG002
        """Regular expressions that a text without calls must not match: every beginning that
        `read_calls` accepts as a call, apart from the form of `grammar`. They must not use `/` or
        line breaks; the only white space is `[ \\t\\r\\n]`."""
        markers = (*self.markers, *self.bare_markers)
        return tuple(re.escape(text) for text in markers if text not in self.answer_marks)

    def opening_patterns(self, tools: Schemas) -> tuple[str, ...]:  # noqa: ARG002
        """Regular expressions that must not match at the start of an answer without calls."""
        return tuple(map(re.escape, self.opening_markers))

    def is_call_so_far(self, text: str, tools: Schemas, least: int) -> bool:
        """Whether a reply that was cut ends with the beginning of a call. `text`: from a marker on.

        True if the text matches a call pattern, or if at least `least` characters of it are a
        prefix of a call of one of these tools. JSON in an answer therefore stays content.
        """
        if any(re.search(pattern, text) for pattern in self.call_patterns(tools)):
            return True
        if any(re.match(pattern, text) for pattern in self.opening_patterns(tools)):
            return True
        begin = _squeezed(text)
        if len(begin) < least or begin[0].isalnum() or not self.has_grammar:
            return False
        form = self.grammar({name: {} for name in tools}, is_parallel=False)
        return any(_squeezed(one).startswith(begin) for one in first_texts(form))

    def literal_texts(self) -> tuple[str, ...]:
        """All texts that identify calls; each may be a special token or contain one."""
        written = texts_within(self.grammar({"f": {}}, is_parallel=True))
        markers = (*self.markers, *self.opening_markers, *self.bare_markers)
        return (*markers, *self.other_texts, *written)


def _squeezed(text: str) -> str:
    """Remove white space, because models vary in how much they write."""
    return "".join(text.split())


def texts_within(part: Any) -> Iterator[str]:
    """Yields the literal texts of a part of a structural tag."""
    if isinstance(part, Mapping):
        for key, value in part.items():
            if key in _LITERALS and isinstance(value, str):
                yield value
            elif key != "json_schema":
                yield from texts_within(value)
    elif isinstance(part, list):
        for each in part:
            yield from texts_within(each)


_LITERALS = frozenset({"begin", "end", "value", "separator"})


class MarkedCalls(ToolFormat):
    """A call or a list of calls after a marker, and an optional end mark. Each family is a class
    that defines its marks, its keys, and the text that its chat template writes around them."""

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
