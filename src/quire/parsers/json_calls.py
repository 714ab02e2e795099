"""Reads calls written as JSON objects that hold a tool's name and arguments in any order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from quire.parsers.json_text import (
    json_elements,
    json_members,
    json_string,
    json_string_value,
    json_value,
)
from quire.parsers.reader import WHITE_SPACE, Emit, Parse, TextReader, ignore

if TYPE_CHECKING:
    from quire.parsers.events import Reply

_MAX_NAME_CHARS = 256
"""Maximum length of a tool name that is written outside of JSON."""


@dataclass(frozen=True)
class CallKeys:
    """The keys of a call object."""

    name: tuple[str, ...] = ("name",)
    arguments: tuple[str, ...] = ("arguments", "parameters")
    id: tuple[str, ...] = ()
    others: tuple[str, ...] | None = None
    """Other keys that a call without arguments may have; None: any key. Their values are
    skipped."""


CALL_KEYS = CallKeys()
BARE_KEYS = CallKeys(others=("type", "id"))
"""Keys of an object without a marker: it is a call if it has arguments, or if it has only the name
of an offered tool and these keys."""


def read_json_call(reply: Reply, keys: CallKeys = CALL_KEYS) -> Parse[bool]:
    """Reads one object. Returns False if it is not a call; then no call has begun.

    Arguments are streamed as written if the name came before them. If there are none, they are
    `{}`.
    """
    call = _Call(reply, keys)
    is_closed = yield from json_members(reply.reader, call.read)
    return call.has_begun or call.begin_late(is_closed)


def read_json_calls(reply: Reply, keys: CallKeys = CALL_KEYS) -> Parse[bool]:
    """Reads a call or a list of calls. Returns False if there is none.

    Other elements of the list are skipped. A list that does not begin with an object has no calls.
    """
    before = reply.num_calls

    def element() -> Parse[bool]:
        if reply.num_calls > before and (yield from reply.reader.skip_space()) != "{":
            return (yield from json_value(reply.reader, ignore))
        yield from read_json_call(reply, keys)
        return True

    if (yield from reply.reader.skip_space()) == "[":
        yield from json_elements(reply.reader, element)
    else:
        yield from element()
    return reply.num_calls > before


def read_arguments(reader: TextReader, emit: Emit) -> Parse[bool]:
    """Reads the value of arguments: an object, or a string whose text is an object. `null` and an
    empty string become `{}`. Returns False if the value is missing or cut short."""
    char = yield from reader.skip_space()
    if char == "n" and (yield from reader.literal("null")):
        emit("{}")
        return True
    if char != '"':
        return (yield from json_value(reader, emit))
    reader_emit = _Counted(emit)
    is_whole = yield from json_string_value(reader, reader_emit)
    if is_whole and not reader_emit.has_text:
        emit("{}")
    return is_whole


def read_name(reader: TextReader, *ends: str) -> Parse[str]:
    """Reads a name up to one of `ends`, which is not read, a line break, or the maximum length."""
    parts: list[str] = []
    while len(parts) < _MAX_NAME_CHARS and (yield from reader.starts_with(*ends)) is None:
        char = yield from reader.next_char()
        if not char or char in "\r\n":
            break
        parts.append(reader.take(1))
    return "".join(parts).strip()


def read_named_call(reply: Reply, name: str, *ends: str, call_id: str | None = None) -> Parse[None]:
    """Reads the arguments of a call whose name was read. If there are none, they are `{}`, and the
    call is complete only if one of `ends` follows."""
    reply.begin_call(name, call_id)
    char = yield from reply.reader.skip_space()
    if char and char in '{"n':
        is_whole = yield from read_arguments(reply.reader, reply.arguments)
    elif not char and reply.reader.is_cut:
        is_whole = False
    else:
        reply.arguments("{}")
        is_whole = (yield from reply.reader.starts_with(*ends)) is not None
    if is_whole:
        reply.end_call()


def read_end(reply: Reply, *ends: str) -> Parse[None]:
    """Reads the end of calls: extra brackets, and one of `ends`. Each may be missing."""
    reader = reply.reader
    reader.record()
    while (yield from reader.skip_space()) in ("}", "]"):
        reader.take(1)
    space = "".join(char for char in reader.recorded() if char in WHITE_SPACE)
    if (yield from reader.literal(*ends)) is None:
        reply.content(space)


class _Counted:
    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self.has_text = False

    def __call__(self, text: str) -> None:
        self.has_text = self.has_text or bool(text)
        self._emit(text)


class _Call:
    """A call whose object is being read."""

    def __init__(self, reply: Reply, keys: CallKeys) -> None:
        self.has_begun = False
        self._reply = reply
        self._keys = keys
        self._name = ""
        self._id: str | None = None
        self._early = ""
        """Arguments that came before the name."""
        self._has_arguments = False
        self._is_certain = True
        """Whether all keys so far belong to calls."""

    def read(self, key: str) -> Parse[bool]:
        """Reads the value of a key. Returns False if it is broken or the object is not a call."""
        reader, keys = self._reply.reader, self._keys
        if key in keys.name and not self._name:
            self._name = (yield from json_string(reader)) or ""
            return bool(self._name)
        if key in keys.id and (yield from reader.skip_space()) == '"':
            self._id = yield from json_string(reader)
            return self._id is not None
        if key in keys.arguments and not self._has_arguments:
            return (yield from self._read_arguments())
        self._is_certain &= keys.others is None or key in keys.others
        return (yield from json_value(reader, ignore))

    def begin_late(self, is_closed: bool) -> bool:
        """Begin and end a call after its object was read, if it had not begun. Returns False if it
        is not a call."""
        is_certain = self._keys.others is None or (
            self._is_certain and self._name in self._reply.tools
        )
        if not self._name or not (self._has_arguments or (is_closed and is_certain)):
            return False
        self._reply.begin_call(self._name, self._id)
        self._reply.arguments(self._early or "{}")
        self._reply.end_call()
        return True

    def _read_arguments(self) -> Parse[bool]:
        reply = self._reply
        if not self._name:
            early: list[str] = []
            is_whole = yield from read_arguments(reply.reader, early.append)
            self._early = "".join(early)
            self._has_arguments = is_whole
            return is_whole
        reply.begin_call(self._name, self._id)
        self.has_begun = self._has_arguments = True
        is_whole = yield from read_arguments(reply.reader, reply.arguments)
        if is_whole:
            reply.end_call()
        return is_whole
