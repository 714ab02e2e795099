"""SentencePiece models, written field by field."""

from __future__ import annotations

import struct
from collections.abc import Sequence

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
Row = tuple[str, float, int]


def varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def block(field: int, data: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(data)) + data


def piece(text: str, score: float, type: int) -> bytes:
    score_field = varint(2 << 3 | 5) + struct.pack("<f", score)
    return block(1, block(1, text.encode()) + score_field + number(3, type))


def model(
    rows: Sequence[Row], *, kind: int = 2, trainer: bytes = b"", normalizer: bytes = b""
) -> bytes:
    """`kind`: 1 unigram, 2 BPE. The normalizer's defaults add a space and remove others."""
    data = b"".join(piece(*row) for row in rows)
    return data + block(2, number(3, kind) + trainer) + block(3, normalizer)


KEEPS_SPACES = number(4, 0)
"""remove_extra_whitespaces is false."""


def llama_rows(words: Sequence[str]) -> list[Row]:
    """As Llama's: `words` are the merged pieces, the best first; then all their characters."""
    letters = sorted({letter for word in words for letter in word})
    merged = [(word, -float(place), NORMAL) for place, word in enumerate(words)]
    singles = [(letter, -float(len(words) + place), NORMAL) for place, letter in enumerate(letters)]
    return [
        ("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL),
        *((f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)), *merged, *singles,
    ]  # fmt: skip
