"""The events of a `ReplyParser`, and the message that they form; `Reply`: the text and the events
of one reply while its format parses it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from quire.parsers.arguments.schemas import ValueSchema
from quire.parsers.reader import WHITE_SPACE, Emit, TextReader


@dataclass(frozen=True, slots=True)
class Content:
    """The next part of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """The next part of the reasoning before the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegins:
    """A tool call begins. Its arguments follow, then `CallEnds`."""

    index: int
    """Position of the call in the reply, counted from 0."""
    name: str
    id: str | None = None
    """The id that the model wrote; None if it wrote none."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """The next part of a call's arguments, which form a JSON text."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnds:
    """A call is complete. A call without this event was cut short."""

    index: int


Event = Content | Reasoning | CallBegins | Arguments | CallEnds


@dataclass(slots=True)
class ToolCall:
    """A tool call."""

    name: str
    id: str | None = None
    arguments: str = ""
    """A JSON text; incomplete if the call was cut short."""
    is_complete: bool = False


@dataclass(slots=True)
class Message:
    """The message that a sequence of events forms."""

    content: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)

    @classmethod
    def of(cls, events: Iterable[Event]) -> Message:
        """Build the message from these events."""
        message = cls()
        content, reasoning = [], []
        arguments: list[list[str]] = []
        for event in events:
            if isinstance(event, Content):
                content.append(event.text)
            elif isinstance(event, Reasoning):
                reasoning.append(event.text)
            elif isinstance(event, CallBegins):
                message.tool_calls.append(ToolCall(event.name, event.id))
                arguments.append([])
            elif isinstance(event, Arguments):
                arguments[event.index].append(event.text)
            else:
                message.tool_calls[event.index].is_complete = True
        message.content, message.reasoning = "".join(content), "".join(reasoning)
        for call, parts in zip(message.tool_calls, arguments, strict=True):
            call.arguments = "".join(parts)
        return message


def merged(events: Iterable[Event]) -> list[Event]:
    """The same events, with successive texts of one kind merged into one event."""
    merged: list[Event] = []
    parts: list[str] = []

    def close() -> None:
        if len(parts) > 1:
            last, text = merged[-1], "".join(parts)
            if isinstance(last, Arguments):
                merged[-1] = Arguments(last.index, text)
            elif isinstance(last, Content | Reasoning):
                merged[-1] = type(last)(text)
        parts.clear()

    for event in events:
        if isinstance(event, CallBegins | CallEnds):
            close()
            merged.append(event)
            continue
        last = merged[-1] if parts else None
        if type(last) is not type(event) or (
            isinstance(event, Arguments)
            and isinstance(last, Arguments)
            and event.index != last.index
        ):
            close()
            merged.append(event)
        parts.append(event.text)
    close()
    return merged


_MAX_WORD_CHARS = 256


class HeldSpace:
    """Passes text on, but holds back white space at its end until more text follows."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._space: list[str] = []

    def take(self, text: str) -> None:
        """Add more text."""
        if not text:
            return
        words = text.rstrip(WHITE_SPACE)
        if words:
            self.release()
            self._emit(words)
        if len(words) < len(text):
            self._space.append(text[len(words) :])

    def release(self) -> None:
        """Pass on the held-back white space."""
        for space in self._space:
            self._emit(space)
        self._space.clear()

    def drop(self) -> None:
        """Discard the held-back white space."""
        self._space.clear()


class Reply:
    """The text of one reply, and the events produced from it.

    White space right before a call and after the last call is dropped. So is white space before an
    unfinished mark or call at which the reply was cut.
    """

    def __init__(self, tools: Mapping[str, Mapping[str, Any]], *, is_reasoning: bool) -> None:
        """`tools`: the JSON schema of the arguments for each offered tool. `is_reasoning`: the
        prompt ends within the reasoning."""
        self.reader = TextReader()
        self.tools = tools
        self._schemas: dict[str, ValueSchema] = {}
        self.is_reasoning = is_reasoning
        self.marker = ""
        """The marker that was found last."""
        self.num_calls = 0
        self.reasoning_spans: list[tuple[int, int]] = []
        """Spans of reasoning: first character, and the character after the last."""
        self._events = events = list[Event]()
        self._content = HeldSpace(lambda text: events.append(Content(text)))
        self._content_end = ""
        self._reasoning = HeldSpace(lambda text: events.append(Reasoning(text)))

    def taken(self) -> list[Event]:
        """Return the events since the last call of this method."""
        events = self._events.copy()
        self._events.clear()
        return events

    def content(self, text: str) -> None:
        """Add text to the answer."""
        self._content.take(text)
        self._content_end = (self._content_end + text[-_MAX_WORD_CHARS:])[-_MAX_WORD_CHARS:]

    def last_word(self) -> str:
        """The last word of the answer so far; empty if the answer ends with white space."""
        words = self._content_end.rsplit(maxsplit=1)
        return words[-1] if words and self._content_end.endswith(words[-1]) else ""

    def drop_content_space(self) -> None:
        """Drop white space at the end of the answer so far."""
        self._content.drop()

    def reasoning(self, text: str) -> None:
        """Add text to the reasoning; it must be the text that was read last."""
        if not text:
            return
        self._reasoning.take(text)
        end = self.reader.num_read
        begin = end - len(text)
        if self.reasoning_spans and self.reasoning_spans[-1][1] == begin:
            begin = self.reasoning_spans.pop()[0]
        self.reasoning_spans.append((begin, end))

    def insert_reasoning(self, text: str) -> None:
        """Add text to the reasoning that is not part of the reply's text."""
        self._reasoning.take(text)

    def keep_reasoning_space(self) -> None:
        """Emit white space at the end of the reasoning so far as part of it."""
        self._reasoning.release()

    def end_reasoning(self, *, keeps_space: bool) -> None:
        """End the reasoning. `keeps_space`: white space at its end is part of it."""
        self.is_reasoning = False
        if keeps_space:
            self._reasoning.release()
        self._reasoning.drop()

    def begin_call(self, name: str, call_id: str | None = None) -> int:
        """Begin a call of a tool; returns its index."""
        self._content.drop()
        self._content_end = ""
        self.end_reasoning(keeps_space=False)
        self.reader.recorded()  # stop recording: a call that began never becomes content
        index = self.num_calls
        self.num_calls += 1
        self._events.append(CallBegins(index, name, call_id))
        return index

    def arguments(self, text: str) -> None:
        """Add the next part of the JSON arguments to the current call."""
        if text:
            self._events.append(Arguments(self.num_calls - 1, text))

    def end_call(self) -> None:
        """Complete the current call."""
        self._events.append(CallEnds(self.num_calls - 1))

    def end(self) -> None:
        """Finish the reply: the text has ended."""
        if not self.num_calls and not self.reader.has_dropped:
            self._content.release()
        self._content.drop()

    def schema_of(self, tool: str) -> ValueSchema:
        """The schema of a tool's arguments, for reading; of any, for a tool that is not offered."""
        if tool not in self._schemas:
            self._schemas[tool] = ValueSchema.of_tool(self.tools.get(tool, {}), is_lenient=True)
        return self._schemas[tool]
