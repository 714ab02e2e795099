"""Writes the arguments of a call, which arrive one by one, as one JSON object."""

from __future__ import annotations

import json
from collections.abc import Mapping

from quire.parsers.arguments.values import ANY, TEXT, Form, Trim, Types, ValueWriter, json_text
from quire.parsers.events import Reply
from quire.parsers.reader import Emit

_WRAPPERS = ("arguments", "input", "properties", "parameters")


class ArgumentsWriter:
    """Begins a call, and writes its arguments as they arrive.

    A model may wrap all arguments in one argument that is an object. If the tool has no argument of
    that name and has all members of the object, the members become the arguments.
    """

    def __init__(self, reply: Reply, name: str, *, trim: Trim = "", unknown: Types = TEXT) -> None:
        """`unknown`: types assumed for an argument that the tool does not declare."""
        reply.begin_call(name)
        self._reply, self._trim, self._unknown = reply, trim, unknown
        self._schema = reply.schema_of(name)
        self.names = self._schema.names()
        """The names of the arguments that the tool declares."""
        self._count = 0
        self._held: list[str] | None = None
        """Parts of an argument that may wrap all arguments."""
        self._held_key = ""

    def form(self, key: str, hint: Types = ANY) -> Form:
        """Possible values of an argument. `hint`: types that the model wrote."""
        if (schema := self._schema.member(key)) is None:
            return Form(hint or self._unknown)
        types, words = schema.form
        return Form(hint & types or types, words)

    def value(self, key: str, form: Form) -> ValueWriter:
        """Return a writer for the text of the next argument."""
        self._emit_held()
        if not self._count and self._may_be_all(key):
            self._held, self._held_key = [], key
            return ValueWriter(self._held.append, Form(), self._trim)
        self._emit_key(key)
        return ValueWriter(self._reply.arguments, form, self._trim)

    def member(self, key: str) -> Emit:
        """Return a function that takes the next argument as JSON text."""
        self._emit_held()
        self._emit_key(key)
        return self._reply.arguments

    def end(self) -> None:
        """Finish the call: it is complete."""
        if self._held is not None and self._is_all(text := "".join(self._held)):
            self._reply.arguments(text)
        else:
            self._emit_held()
            self._reply.arguments("}" if self._count else "{}")
        self._reply.end_call()

    def _emit_key(self, key: str) -> None:
        self._reply.arguments(("{" if not self._count else ", ") + json_text(key) + ": ")
        self._count += 1

    def _may_be_all(self, key: str) -> bool:
        return key in _WRAPPERS and bool(self.names) and key not in self.names

    def _emit_held(self) -> None:
        if self._held is not None:
            held, self._held = self._held, None
            self._emit_key(self._held_key)
            self._reply.arguments("".join(held))

    def _is_all(self, text: str) -> bool:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return False
        return isinstance(value, Mapping) and value.keys() <= self.names
