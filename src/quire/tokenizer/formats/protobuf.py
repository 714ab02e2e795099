"""Reads the fields of a protocol buffers message, without a schema.

A message is a row of fields: a number with three bits for the kind of the value, then the value.
Source: https://protobuf.dev/programming-guides/encoding/. Every length is checked against the
bytes that are left.
"""

from __future__ import annotations

from collections.abc import Iterator

from quire.errors import CheckpointError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""The kinds of values that are in use."""
_SIZES = {FIXED64: 8, FIXED32: 4}
_MAX_VARINT_BYTES = 10

Field = tuple[int, int, "int | bytes"]
"""Number, kind, value: a whole number of a VARINT, bytes of the others."""


def fields(data: bytes, source: str) -> Iterator[Field]:
    """The fields of a message in order. Raises CheckpointError, naming `source`, for bytes that are
    no message."""
    place = 0
    while place < len(data):
        tag, place = _varint(data, place, source)
        number, kind = tag >> 3, tag & 7
        if kind == VARINT:
            value, place = _varint(data, place, source)
            yield number, kind, value
            continue
        if kind == BYTES:
            size, place = _varint(data, place, source)
        elif kind in _SIZES:
            size = _SIZES[kind]
        else:
            raise CheckpointError(f"{source}: a field has kind {kind}, which is not in use")
        end = place + size
        if end > len(data):
            raise CheckpointError(
                f"{source}: a field of {size} bytes begins at {place}, and the message ends at "
                f"{len(data)}: it is truncated, or no protocol buffers message"
            )
        yield number, kind, data[place:end]
        place = end


def _varint(data: bytes, place: int, source: str) -> tuple[int, int]:
    """The number at `place`, with seven bits per byte, and the place after it."""
    value = shift = 0
    for byte in data[place : place + _MAX_VARINT_BYTES]:
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
    raise CheckpointError(f"{source}: a number at {place} does not end")
