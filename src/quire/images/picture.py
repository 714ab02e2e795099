"""`Picture`: a decoded picture of a request, ready for the model's encoder."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

import msgspec

from quire.errors import RequestError
from quire.images.job import MAX_FILE_BYTES
from quire.images.process import decoded
from quire.images.rules import AnyResizing, Layout, Size
from quire.units import format_bytes


@dataclass(frozen=True, slots=True)
class Picture:
    """Tiles in RGB, one after the other, and what identifies them."""

    digest: bytes
    """SHA-256 of the file's bytes and of the rules: equal digests mean equal tiles."""
    size: Size
    layout: Layout
    pixels: bytes


def picture_of(data: bytes, rules: AnyResizing) -> Picture:
    """Decode a file. Raises RequestError if it cannot be used, QuireError without Pillow."""
    if len(data) > MAX_FILE_BYTES:
        raise RequestError(
            f"an image file of {format_bytes(len(data))} is too large: at most "
            f"{format_bytes(MAX_FILE_BYTES)} are decoded"
        )
    head, pixels = decoded(data, rules)
    return Picture(picture_digest(data, rules), head.size, head.layout, bytes(pixels))


def picture_digest(data: bytes, rules: AnyResizing) -> bytes:
    """What identifies the tiles of a file. Parts are length-prefixed."""
    state = hashlib.sha256(b"quire.image.1")
    for part in (msgspec.msgpack.encode(rules), data):
        state.update(struct.pack("<Q", len(part)))
        state.update(part)
    return state.digest()
