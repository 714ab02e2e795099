"""`JsonList`: a list of a reply that is encoded as it grows.

Encoding is one call, during which no other thread of Python runs; a large list is encoded in
pieces, and its values need not exist all at once. Called by the writers of replies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

ITEMS_AT_ONCE = 256
"""Items that are encoded by one call, where there may be many."""

_encode = msgspec.json.encode


class JsonList:
    """A list that grows, as JSON text."""

    __slots__ = ("_parts",)

    def __init__(self, values: Sequence[Any] = ()) -> None:
        """`values` may be many; they go in piece by piece."""
        self._parts: list[bytes] = []
        for begin in range(0, len(values), ITEMS_AT_ONCE):
            self.extend(values[begin : begin + ITEMS_AT_ONCE])

    def extend(self, values: Sequence[Any]) -> None:
        """Adds some values."""
        if values:
            self._parts.append(_encode(values)[1:-1])

    def join(self, others: JsonList) -> None:
        """Adds those of another list, which stays as it is."""
        self._parts += others._parts

    def encoded(self) -> Any:
        """In the place of the list, as a struct's field: msgspec writes it as it stands."""
        return msgspec.Raw(b"[" + b",".join(self._parts) + b"]")
