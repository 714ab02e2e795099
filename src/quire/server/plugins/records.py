"""The results of reply parsers: vLLM's `DeltaMessage`, `ToolCall` and their parts.

They have the methods that parsers use of pydantic's models. A part may also be given as a mapping.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, TypeVar

import msgspec

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
        del others
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
