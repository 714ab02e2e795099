"""`encoded`: the JSON text of a reply in pieces; `JsonList`: a list of it that may be long.

Encoding is one call that holds the GIL, and so is every copy of its result. So the lists of a large
reply are encoded a few hundred values at a time, and the text is never joined: it is written as it
lies. Between pieces `check_wanted` ends work whose client has disconnected; all work on large
inputs calls it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import msgspec


class NotWantedError(Exception):
    """The caller of this thread's work was cancelled. The error ends the work and is dropped."""


IS_UNWANTED: ContextVar[threading.Event | None] = ContextVar("quire_is_unwanted", default=None)
"""Set on a thread of the pool: is set itself once the caller of the work was cancelled."""


def check_wanted() -> None:
    """Raises NotWantedError on a thread of the pool once its caller was cancelled."""
    event = IS_UNWANTED.get()
    if event is not None and event.is_set():
        raise NotWantedError


ITEMS_AT_ONCE = 256
"""Items that are encoded by one call, where there may be many."""
_MARK = b"\0"
"""Stands for a list in an encoded value; no JSON text holds this byte."""
_PLACE = msgspec.Raw(_MARK)


class JsonList:
    """A list that grows. Its values become JSON text as they are added."""

    __slots__ = ("_parts",)

    def __init__(self, values: Sequence[Any] = ()) -> None:
        self._parts: list[bytes] = []
        self.add(values)

    def add(self, values: Sequence[Any]) -> None:
        """Adds some values, in which lists may be `JsonList`s."""
        for begin in range(0, len(values), ITEMS_AT_ONCE):
            check_wanted()
            pieces = encoded(values[begin : begin + ITEMS_AT_ONCE])
            pieces[0] = pieces[0][1:]  # without the brackets
            pieces[-1] = pieces[-1][:-1]
            self.add_encoded(pieces)

    def add_encoded(self, pieces: Iterable[bytes]) -> None:
        """Adds values that are JSON text already."""
        if self._parts:
            self._parts.append(b",")
        self._parts += pieces

    def join(self, others: JsonList) -> None:
        """Adds the values of another list, which stays as it is."""
        if others._parts:
            self.add_encoded(others._parts)

    def as_field(self) -> Any:
        """Itself, in the place of a list in a value that is encoded. It may be in several."""
        return self

    def pieces(self) -> Iterator[bytes]:
        """The whole text."""
        yield b"["
        yield from self._parts
        yield b"]"


class _Met(threading.local):
    """The lists that this thread's encoder has met."""

    lists: list[JsonList]


_met = _Met()


def _place(one: Any) -> msgspec.Raw:
    if not isinstance(one, JsonList):
        raise TypeError(f"{type(one).__name__} has no form in JSON")
    _met.lists.append(one)
    return _PLACE


_encoder = msgspec.json.Encoder(enc_hook=_place)


def encoded(value: Any) -> list[bytes]:
    """The text of a value, in which lists may be `JsonList`s."""
    lists: list[JsonList] = []
    _met.lists = lists
    text = _encoder.encode(value)
    if not lists:
        return [text]
    first, *others = text.split(_MARK)
    pieces = [first]
    for placed, part in zip(lists, others, strict=True):
        pieces += placed.pieces()
        pieces.append(part)
    return pieces


def joined(pieces: Iterable[bytes], num_bytes: int) -> Iterator[bytes]:
    """The same text in pieces of at least so many bytes, but for the last."""
    pending: list[bytes] = []
    size = 0
    for piece in pieces:
        pending.append(piece)
        size += len(piece)
        if size >= num_bytes:
            yield b"".join(pending)
            pending, size = [], 0
    if pending:
        yield b"".join(pending)
