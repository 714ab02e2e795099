"""The results of reply parsers: vLLM's `DeltaMessage`, `ToolCall` and their parts.

They have the methods that parsers use of pydantic's models. A part may also be given as a mapping.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Literal, TypeVar

import msgspec

from quire.parsers.events import Arguments, CallBegins, CallEnds, Content, Event, Reasoning

Own = TypeVar("Own", bound="Record")


def make_tool_call_id() -> str:
    """A new id for a call."""
    return f"chatcmpl-tool-{secrets.token_hex(8)}"


class Record(msgspec.Struct, kw_only=True):
    """Fields of JSON. `model_validate` raises msgspec.ValidationError, a ValueError."""

    parts: ClassVar[Mapping[str, type[Record]]] = {}
    """Fields that are records of their own, or lists of them."""

    def __post_init__(self) -> None:
        for name, kind in self.parts.items():
            value = getattr(self, name)
            if isinstance(value, list | tuple):
                setattr(self, name, [kind.model_validate(one) for one in value])
            elif value is not None:
                setattr(self, name, kind.model_validate(value))

    @classmethod
    def model_validate(cls: type[Own], obj: Any) -> Own:
        """From a mapping; a record stays what it is."""
        return obj if isinstance(obj, cls) else msgspec.convert(obj, cls)

    def model_dump(
        self, *, exclude_none: bool = False, exclude_unset: bool = False, **others: Any
    ) -> dict[str, Any]:
        """The fields, as JSON has them. With `exclude_unset` without those that have their default;
        other options of pydantic's have no effect."""
        found: dict[str, Any] = {}
        for field in msgspec.structs.fields(self):
            value = getattr(self, field.name)
            is_default = value == field.default or (
                isinstance(field.default_factory, type) and value == field.default_factory()
            )
            if (exclude_none and value is None) or (exclude_unset and is_default):
                continue
            found[field.name] = _dumped(
                value,
                lambda one: one.model_dump(exclude_none=exclude_none, exclude_unset=exclude_unset),
            )
        return found

    def model_dump_json(self, *, exclude_none: bool = False, exclude_unset: bool = False) -> str:
        """The same as text."""
        fields = self.model_dump(exclude_none=exclude_none, exclude_unset=exclude_unset)
        return msgspec.json.encode(fields).decode()

    def model_copy(self: Own, *, update: Mapping[str, Any] | None = None) -> Own:
        """A copy, with these values changed."""
        return msgspec.structs.replace(self, **(update or {}))


def _dumped(value: Any, dump: Callable[[Record], dict[str, Any]]) -> Any:
    if isinstance(value, list):
        return [_dumped(one, dump) for one in value]
    return dump(value) if isinstance(value, Record) else value


class FunctionCall(Record):
    """A call's function. `id` is the model's own, if the call has one."""

    name: str
    arguments: str
    id: str | None = None

    def model_dump(self, **options: Any) -> dict[str, Any]:
        """Without the id, which is the call's."""
        found = super().model_dump(**options)
        found.pop("id", None)
        return found


class ToolCall(Record):
    """A call that is complete."""

    parts = {"function": FunctionCall}

    function: FunctionCall
    id: str = msgspec.field(default_factory=make_tool_call_id)
    type: Literal["function"] = "function"


class ExtractedToolCallInformation(Record):
    """The calls of a whole reply, and its other content."""

    parts = {"tool_calls": ToolCall}

    tools_called: bool
    tool_calls: list[ToolCall]
    content: str | None = None


class DeltaFunctionCall(Record):
    """New parts of a function call: first the name, then the arguments, piece by piece."""

    name: str | None = None
    arguments: str | None = None


class DeltaToolCall(Record):
    """New parts of a call."""

    parts = {"function": DeltaFunctionCall}

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: DeltaFunctionCall | None = None


class DeltaMessage(Record):
    """New parts of a message."""

    parts = {"tool_calls": DeltaToolCall}

    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    tool_calls: list[DeltaToolCall] = msgspec.field(default_factory=list)

    def model_dump(self, **options: Any) -> dict[str, Any]:
        """Without an empty list of calls."""
        found = super().model_dump(**options)
        if not found.get("tool_calls"):
            found.pop("tool_calls", None)
        return found


def delta_of(
    events: Iterable[Event],
    new_id: Callable[[str, int], str] = lambda name, index: make_tool_call_id(),
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
