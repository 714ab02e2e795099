"""The events of a `ReplyParser`, and the message that they form."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


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
