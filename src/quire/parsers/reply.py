"""`Reply`: a reply as its format reads it: the text that arrives, and the events that are told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.parsers.events import (
    Arguments,
    CallBegins,
    CallEnds,
    Content,
    Event,
    Reasoning,
)
from quire.parsers.reader import WHITE_SPACE, Emit, TextReader

_MAX_WORD_CHARS = 256


class HeldSpace:
    """Passes text on, but for white space at its end, which waits for what follows it."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._space: list[str] = []

    def take(self, text: str) -> None:
        """More text."""
        if not text:
            return
        words = text.rstrip(WHITE_SPACE)
        if words:
            self.release()
            self._emit(words)
        if len(words) < len(text):
            self._space.append(text[len(words) :])

    def release(self) -> None:
        """The white space is part of the text."""
        for space in self._space:
            self._emit(space)
        self._space.clear()

    def drop(self) -> None:
        """The white space is not part of the text."""
        self._space.clear()


class Reply:
    """The text of one reply, and what was told of it.

    White space right before a call, and after the last one, belongs to neither: it is dropped. So
    is white space before a part of a mark or of a call with which the reply was cut.
    """

    def __init__(self, tools: Mapping[str, Mapping[str, Any]], *, is_reasoning: bool) -> None:
        """`tools`: the JSON schema of the arguments, for each tool the request offers.
        `is_reasoning`: the prompt ends within the reasoning."""
        self.reader = TextReader()
        self.tools = tools
        self.is_reasoning = is_reasoning
        self.marker = ""
        """The marker that was found last."""
        self.num_calls = 0
        self.reasoning_spans: list[tuple[int, int]] = []
        """Where reasoning is in the text, from a character up to before another one."""
        self._events = events = list[Event]()
        self._content = HeldSpace(lambda text: events.append(Content(text)))
        self._content_end = ""
        self._reasoning = HeldSpace(lambda text: events.append(Reasoning(text)))

    def taken(self) -> list[Event]:
        """The events since the last time."""
        events = self._events.copy()
        self._events.clear()
        return events

    def content(self, text: str) -> None:
        """More of the answer."""
        self._content.take(text)
        self._content_end = (self._content_end + text[-_MAX_WORD_CHARS:])[-_MAX_WORD_CHARS:]

    def last_word(self) -> str:
        """The word that the answer so far ends with; empty if it ends with white space."""
        words = self._content_end.rsplit(maxsplit=1)
        return words[-1] if words and self._content_end.endswith(words[-1]) else ""

    def drop_content_space(self) -> None:
        """White space at the end of the answer so far is no part of it."""
        self._content.drop()

    def reasoning(self, text: str) -> None:
        """More of the reasoning, which was read just now."""
        if not text:
            return
        self._reasoning.take(text)
        end = self.reader.num_read
        begin = end - len(text)
        if self.reasoning_spans and self.reasoning_spans[-1][1] == begin:
            begin = self.reasoning_spans.pop()[0]
        self.reasoning_spans.append((begin, end))

    def insert_reasoning(self, text: str) -> None:
        """More of the reasoning, which is not in the text."""
        self._reasoning.take(text)

    def keep_reasoning_space(self) -> None:
        """White space at the end of the reasoning so far is part of it, whatever follows."""
        self._reasoning.release()

    def end_reasoning(self, *, keeps_space: bool) -> None:
        """The reasoning is over. `keeps_space`: white space at its end is part of it."""
        self.is_reasoning = False
        if keeps_space:
            self._reasoning.release()
        self._reasoning.drop()

    def begin_call(self, name: str, call_id: str | None = None) -> int:
        """A call of a tool; returns its index."""
        self._content.drop()
        self._content_end = ""
        self.end_reasoning(keeps_space=False)
        self.reader.recorded()  # a call that began never becomes content
        index = self.num_calls
        self.num_calls += 1
        self._events.append(CallBegins(index, name, call_id))
        return index

    def arguments(self, text: str) -> None:
        """More of the arguments of the call that began last: the next part of a JSON text."""
        if text:
            self._events.append(Arguments(self.num_calls - 1, text))

    def end_call(self) -> None:
        """The call that began last is complete."""
        self._events.append(CallEnds(self.num_calls - 1))

    def end(self) -> None:
        """The text is over."""
        if not self.num_calls and not self.reader.has_dropped:
            self._content.release()
        self._content.drop()

    def properties(self, tool: str) -> Mapping[str, Any]:
        """The schemas of a tool's arguments by name; empty for a tool that is not offered."""
        properties = self.tools.get(tool, {}).get("properties")
        return properties if isinstance(properties, Mapping) else {}
