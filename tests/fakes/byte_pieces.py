"""Byte-level vocabularies by rank, as tiktoken's."""

from __future__ import annotations

import random


def pieces() -> list[bytes]:
    """All bytes, then what merging random pairs of earlier pieces makes."""
    rng = random.Random(3)
    found = [bytes([one]) for one in range(256)]
    letters = [b"a", b"b", b"c", " é".encode()[:2], b"\xc3", b"\xa9", b" "]
    while len(found) < 600:
        left, right = rng.choice(letters), rng.choice(letters)
        if (piece := left + right) not in found and len(piece) < 9:
            found.append(piece)
            letters.append(piece)
    return found


PIECES = pieces()
