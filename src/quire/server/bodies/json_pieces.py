"""`JsonPieces`: the JSON text of a reply, made and kept in pieces.

Encoding is one call, during which no other thread of Python runs, and so is every copy of its
result. Of a large reply, lists are encoded a few hundred values at a time, and the text is never
joined: it is written as it lies. Called by the writers of replies.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

ITEMS_AT_ONCE = 256
"""Items that are encoded by one call, where there may be many."""
_MARK = b"\0"
"""Stands for a list in an encoded value; no JSON text holds this byte."""

_encode = msgspec.json.encode


class JsonList:
    """A list that grows, as JSON text."""

    __slots__ = ("_owner", "_parts")

    def __init__(self, owner: JsonPieces) -> None:
        self._owner = owner
        self._parts: list[bytes] = []

    def add(self, values: Sequence[Any]) -> None:
        """Adds some values."""
        for begin in range(0, len(values), ITEMS_AT_ONCE):
            self._begin()
            self._parts.append(_encode(values[begin : begin + ITEMS_AT_ONCE])[1:-1])

    def add_pieces(self, pieces: Iterable[bytes]) -> None:
        """Adds one value that is encoded already."""
        self._begin()
        self._parts += pieces

    def join(self, others: JsonList) -> None:
        """Adds the values of another list, which stays as it is."""
        if others._parts:
            self._begin()
            self._parts += others._parts

    def encoded(self) -> Any:
        """In the place of the list, as a field of the struct that is encoded next."""
        return self._owner.place(self)

    def pieces(self) -> Iterator[bytes]:
        """The whole text."""
        yield b"["
        yield from self._parts
        yield b"]"

    def _begin(self) -> None:
        if self._parts:
            self._parts.append(b",")


class JsonPieces:
    """Makes the text of one reply. Belongs to one thread at a time."""

    def __init__(self) -> None:
        self._placed: list[JsonList] = []

    def new_list(self, values: Sequence[Any] = ()) -> JsonList:
        """A new list of these values."""
        made = JsonList(self)
        made.add(values)
        return made

    def place(self, values: JsonList) -> msgspec.Raw:
        """What stands for a list until `encode`."""
        self._placed.append(values)
        return msgspec.Raw(b"%b%d%b" % (_MARK, len(self._placed) - 1, _MARK))

    def encode(self, value: Any) -> list[bytes]:
        """The text of a value; the lists that were placed since the last call stand in it."""
        placed, self._placed = self._placed, []
        text = _encode(value)
        if not placed:
            return [text]
        pieces: list[bytes] = []
        for index, part in enumerate(text.split(_MARK)):
            if index % 2:
                pieces += placed[int(part)].pieces()
            else:
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
