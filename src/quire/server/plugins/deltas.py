"""From the events of a reply to vLLM's `DeltaMessage`, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from quire.parsers.events import Arguments, CallBegins, CallEnds, Content, Event, Reasoning
from quire.server.plugins.records import (
    DeltaFunctionCall,
    DeltaMessage,
    DeltaToolCall,
    ExtractedToolCallInformation,
    make_tool_call_id,
)


def delta_of(
    events: Iterable[Event],
    new_id: Callable[[str, int], str] = lambda name, index: make_tool_call_id(),  # noqa: ARG005
) -> DeltaMessage | None:
    """One delta for all events; None if they are empty.

    `new_id` makes the id of a call for which the model wrote none, from its name and index.
    """
    content, reasoning = [], []
    calls: dict[int, DeltaToolCall] = {}
    for event in events:
        if isinstance(event, Content):
            content.append(event.text)
        elif isinstance(event, Reasoning):
            reasoning.append(event.text)
        elif isinstance(event, CallBegins):
            calls[event.index] = DeltaToolCall(
                index=event.index,
                id=event.id or new_id(event.name, event.index),
                type="function",
                function=DeltaFunctionCall(name=event.name),
            )
        elif isinstance(event, Arguments):
            call = calls.setdefault(
                event.index, DeltaToolCall(index=event.index, function=DeltaFunctionCall())
            )
            if call.function is not None:
                call.function.arguments = (call.function.arguments or "") + event.text
    if not (content or reasoning or calls):
        return None
    return DeltaMessage(
        content="".join(content) or None,
        reasoning="".join(reasoning) or None,
        tool_calls=list(calls.values()),
    )


class CallEvents:
    """Converts a parser's calls to events. The parser's indices need not begin at 0."""

    def __init__(self) -> None:
        self._indices: dict[int, int] = {}
        self._last_arguments: list[str] = []
        self._has_ended = False

    @property
    def num_calls(self) -> int:
        """Calls that have begun."""
        return len(self._indices)

    def of_whole(self, found: ExtractedToolCallInformation) -> list[Event]:
        """The events of a whole reply."""
        events: list[Event] = [Content(found.content)] if found.content else []
        for call in found.tool_calls if found.tools_called else ():
            index = self._indices[self.num_calls] = self.num_calls
            call_id = call.function.id or call.id
            events += [
                CallBegins(index, call.function.name, call_id),
                Arguments(index, call.function.arguments),
                CallEnds(index),
            ]
        self._has_ended = True
        return events

    def of_delta(self, delta: DeltaMessage | None) -> list[Event]:
        """The events of a delta. A call begins with its name; earlier parts are dropped."""
        if delta is None:
            return []
        events: list[Event] = [Content(delta.content)] if delta.content else []
        for call in delta.tool_calls:
            function = call.function
            if function is None:
                continue
            if call.index not in self._indices and function.name:
                index = self._indices[call.index] = self.num_calls
                events.append(CallBegins(index, function.name, call.id))
                self._last_arguments = []
            if function.arguments and call.index in self._indices:
                self._last_arguments.append(function.arguments)
                events.append(Arguments(self._indices[call.index], function.arguments))
        return events

    def end(self, rest: str, *, is_cut: bool) -> list[Event]:
        """Ends the reply. `rest`: more arguments of the last call. If the reply was cut,
        that call is complete only where its arguments are."""
        if self._has_ended or not self._indices:
            return []
        events: list[Event] = [Arguments(self.num_calls - 1, rest)] if rest else []
        is_whole = not is_cut or _is_json("".join([*self._last_arguments, rest]))
        return [*events, *map(CallEnds, range(self.num_calls - (not is_whole)))]


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except msgspec.DecodeError:
        return False
    return True
