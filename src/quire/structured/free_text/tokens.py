"""`TokenTexts`: the texts of a vocabulary's tokens, and which of them surely leave a text free."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

_MOST_KEPT = 64
"""Tables of one byte for each token."""


class TokenTexts:
    """The bytes of all tokens. Any thread may use it."""

    def __init__(self, token_bytes: Sequence[bytes], special: Collection[int]) -> None:
        """`token_bytes`: by token id; empty for unused ids."""
        self._bytes = token_bytes
        self._special = frozenset(special)
        self._harmless: dict[frozenset[int], bytes] = {}

    def of(self, token_id: int) -> bytes:
        """The bytes of a token."""
        return self._bytes[token_id]

    def is_special(self, token_id: int) -> bool:
        """Whether a token is special, which is not text."""
        return token_id in self._special

    def harmless(self, first_bytes: frozenset[int]) -> bytes:
        """[V]; 1 for each token of whole characters in which none of these bytes is."""
        found = self._harmless.get(first_bytes)
        if found is None:
            if len(self._harmless) >= _MOST_KEPT:
                self._harmless = {}
            bits = np.zeros(256, np.uint8)
            bits[[*first_bytes]] = 1
            is_hit = (self._bytes_within & np.packbits(bits).view(np.uint64)).any(axis=1)
            found = self._harmless[first_bytes] = (self._is_whole & ~is_hit).tobytes()
        return found

    @cached_property
    def _bytes_within(self) -> NDArray[np.uint64]:
        """[V, 4]; a bit for each byte that is in a token."""
        sizes = np.fromiter(map(len, self._bytes), np.int64, len(self._bytes))
        token_of = np.repeat(np.arange(len(sizes)), sizes)
        text = np.frombuffer(b"".join(self._bytes), np.uint8)
        within = np.zeros((len(sizes), 32), np.uint8)
        np.bitwise_or.at(within, (token_of, text >> 3), np.uint8(0x80) >> (text & 7))
        return within.view(np.uint64)

    @cached_property
    def _is_whole(self) -> NDArray[np.bool_]:
        """[V]; whether a token is text, of whole characters."""
        found = np.fromiter(map(_is_whole, self._bytes), np.bool_, len(self._bytes))
        found[[*self._special]] = False
        return found


def _is_whole(data: bytes) -> bool:
    if data.isascii():
        return bool(data)
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
