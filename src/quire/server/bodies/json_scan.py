"""`scan_object`: the fields of a large JSON object by their offsets, with their numbers of values.

NumPy reads the text in pieces, since one call of a decoder keeps all other threads waiting. Used
for large bodies, and to name the field that an error is about.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from quire.errors import RequestError
from quire.server.json_pieces import check_wanted

PIECE_BYTES = 1 << 18
MAX_FIELDS = 1024
"""Most fields of a request; each takes some microseconds."""
_BYTE = re.compile(r" \(byte \d+\)$")
"""Offset within the value, which does not help a caller who sees the whole body."""
_BLANKS = b" " * 8
"""With them at the end, msgspec does not report half of a surrogate pair as a text that was cut."""
_HALF_PAIR = (
    "JSON is malformed: a \\u escape from \\ud800 to \\udfff must be half of a pair, such as "
    "\\ud83d\\ude00; leave a half out, or send \\ufffd"
)


@dataclass(frozen=True, slots=True)
class JsonField:
    """One field of an object, by its offsets in the text."""

    name: str
    begin: int
    """Offset of its value."""
    end: int
    num_values: int
    """About the number of values in it, itself included: 1 plus the marks `[ { , :` in it."""


@dataclass(slots=True)
class _Place:
    """The state of the scan."""

    is_in_string: bool = False
    depth: int = 0
    begin: int = 0
    """Marks in the current field, its name included."""
    colon: int | None = None
    num_marks: int = 0
    """Marks since the field's colon."""


def scan_object(data: bytes) -> list[JsonField]:
    """The fields of the object in `data`. Their values are not validated.

    Raises msgspec.DecodeError if `data` is not an object, RequestError if it has too many fields.
    """
    fields: list[JsonField] = []
    place, end = _Place(), 0
    for offset, piece in _pieces(data):
        marks = _marks(piece, place)
        counted, begin = marks.all, 0
        tops = np.flatnonzero(marks.top).tolist()
        if len(tops) + 2 * len(fields) > 2 * MAX_FIELDS:
            raise RequestError(f"the request has more than {MAX_FIELDS} fields")
        for top in tops:
            place.num_marks += int(np.count_nonzero(counted[begin:top]))
            begin = top
            if place.colon is None and piece[top] == ord(":"):
                place.colon, place.num_marks = offset + top, 0
                begin = top + 1
            elif piece[top] == ord("{"):
                place.begin, place.colon = offset + top + 1, None
            elif piece[top] == ord("]"):
                raise msgspec.DecodeError("JSON is malformed: an object ends with a bracket")
            else:
                end = offset + top
                fields += _field(data, place, end)
                place.begin, place.colon = end + 1, None
        place.num_marks += int(np.count_nonzero(counted[begin:]))
        check_wanted()
    if place.depth or place.is_in_string or data[end + 1 :].strip() or not data.strip():
        raise msgspec.DecodeError("JSON is malformed: it must be one complete object")
    return fields


def in_its_field(data: bytes, error: msgspec.DecodeError) -> msgspec.DecodeError:
    """The error that decoding `data` ended with, with the path of the field whose value is at
    fault: one that holds NaN, for example. As it is where no single value is."""
    with suppress(msgspec.DecodeError, RequestError):
        for field in scan_object(data):
            if (cause := fault_of(data[field.begin : field.end])) is not None:
                return msgspec.DecodeError(f"{cause} - at `$.{field.name}`")
    return msgspec.DecodeError(_HALF_PAIR) if fault_of(data) == _HALF_PAIR else error


def fault_of(value: bytes) -> str | None:
    """Return the message of the error in a JSON text, or None for a text without one."""
    try:
        msgspec.json.decode(value + _BLANKS)
    except msgspec.DecodeError as error:
        return _HALF_PAIR if "surrogate" in str(error) else _BYTE.sub("", str(error))
    return None


def count_byte(data: bytes, byte: bytes) -> int:
    """Counts a byte. (`bytes.count` is slow for frequent bytes, and holds the GIL.)"""
    codes = np.frombuffer(data, np.uint8)
    pieces = range(0, len(data), PIECE_BYTES)
    return sum(int(np.count_nonzero(codes[i : i + PIECE_BYTES] == byte[0])) for i in pieces)


def _field(data: bytes, place: _Place, end: int) -> list[JsonField]:
    if place.colon is None:
        if data[place.begin : end].strip():
            raise msgspec.DecodeError("JSON is malformed: a field has no value")
        return []
    name = msgspec.json.decode(data[place.begin : place.colon], type=str)
    return [JsonField(name, place.colon + 1, end, place.num_marks + 1)]


@dataclass(frozen=True, slots=True)
class _Marks:
    """The marks of a piece, outside of strings."""

    all: NDArray[np.bool_]
    """`[`, `{`, `,` and `:`."""
    top: NDArray[np.bool_]
    """The braces, commas and colons of the outermost object."""


def _marks(piece: bytes, place: _Place) -> _Marks:
    """The marks of the next piece; advances `place`."""
    codes = np.frombuffer(piece, np.uint8)
    is_outside = ~(np.logical_xor.accumulate(codes == ord('"')) ^ place.is_in_string)
    place.is_in_string = not is_outside[-1]
    opening = ((codes == ord("[")) | (codes == ord("{"))) & is_outside
    closing = ((codes == ord("]")) | (codes == ord("}"))) & is_outside
    between = ((codes == ord(",")) | (codes == ord(":"))) & is_outside
    steps = opening.view(np.int8) - closing.view(np.int8)
    depth = np.cumsum(steps, dtype=np.int32) + np.int32(place.depth)
    place.depth = int(depth[-1])
    top = ((opening | between) & (depth == 1)) | (closing & (depth == 0))
    return _Marks(opening | between, top)


def _pieces(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Pieces with their offsets; escaped quotes are replaced by other characters."""
    begin = 0
    while begin < len(data):
        piece = data[begin : begin + PIECE_BYTES]
        num_backslashes = len(piece) - len(piece.rstrip(b"\\"))
        if num_backslashes % 2 and len(piece) > 1:
            piece = piece[:-1]  # it escapes what the next piece begins with
        yield begin, piece.replace(b"\\\\", b"__").replace(b'\\"', b"__")
        begin += len(piece)
