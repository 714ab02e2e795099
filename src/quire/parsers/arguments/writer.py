"""The arguments of a call that are written one by one, told as one JSON object."""

from __future__ import annotations

import json
from collections.abc import Mapping

from quire.parsers.arguments.values import (
    ANY,
    TEXT,
    Trim,
    Types,
    ValueWriter,
    json_text,
    types_of,
)
from quire.parsers.reader import Emit
from quire.parsers.reply import Reply

_WRAPPERS = ("arguments", "input", "properties", "parameters")


class ArgumentsWriter:
    """Begins a call, and writes its arguments as they come.

    A model may write all arguments as one argument, an object. If the tool has none of that name
    and the object has only names that the tool has, its members are the arguments.
    """

    def __init__(self, reply: Reply, name: str, *, trim: Trim = "", unknown: Types = TEXT) -> None:
        """`unknown`: the types of an argument that the tool does not have."""
        reply.begin_call(name)
        self._reply, self._trim, self._unknown = reply, trim, unknown
        self._tool = reply.tools.get(name, {})
        self._properties = reply.properties(name)
        self._count = 0
        self._held: list[str] | None = None
        """The value of an argument that may be all of them."""
        self._held_key = ""

    def types(self, key: str, hint: Types = ANY) -> Types:
        """The types of an argument. `hint`: as the model wrote them."""
        if key not in self._properties:
            return hint or self._unknown
        types = types_of(self._properties[key], self._tool)
        return hint & types or types

    def value(self, key: str, types: Types) -> ValueWriter:
        """Takes the text of the next argument."""
        self._tell_held()
        if not self._count and self._may_be_all(key):
            self._held, self._held_key = [], key
            return ValueWriter(self._held.append, ANY, self._trim)
        self._tell_key(key)
        return ValueWriter(self._reply.arguments, types, self._trim)

    def member(self, key: str) -> Emit:
        """Takes the next argument as a JSON text."""
        self._tell_held()
        self._tell_key(key)
        return self._reply.arguments

    def end(self) -> None:
        """The call is complete."""
        if self._held is not None and self._is_all(text := "".join(self._held)):
            self._reply.arguments(text)
        else:
            self._tell_held()
            self._reply.arguments("}" if self._count else "{}")
        self._reply.end_call()

    def _tell_key(self, key: str) -> None:
        self._reply.arguments(("{" if not self._count else ", ") + json_text(key) + ": ")
        self._count += 1

    def _may_be_all(self, key: str) -> bool:
        return key in _WRAPPERS and bool(self._properties) and key not in self._properties

    def _tell_held(self) -> None:
        if self._held is not None:
            held, self._held = self._held, None
            self._tell_key(self._held_key)
            self._reply.arguments("".join(held))

    def _is_all(self, text: str) -> bool:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return False
        return isinstance(value, Mapping) and value.keys() <= self._properties.keys()
