"""`Picture`: a decoded picture, video or sound of a request, ready for the model's encoder."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from quire.errors import RequestError
from quire.images.cache import PictureCache
from quire.images.job import MAX_FILE_BYTES, MAX_FRAMES
from quire.images.process import decoded
from quire.images.rules import Layout, Rules
from quire.images.time_limit import TimeLimit
from quire.units import format_bytes


@dataclass(frozen=True, slots=True)
class Picture:
    """Tiles one after the other, in RGB or of a sound's spectrum, and what identifies them."""

    digest: bytes
    """SHA-256 of the file's bytes and of the rules: equal digests mean equal tiles."""
    layout: Layout
    pixels: bytes
    kind: str = "image"
    """A name of `MODALITIES`."""
    rows: NDArray[np.float32] | None = None
    """The rows of the text model [rows, width], if the caller has given them; no pixels then."""


@dataclass(frozen=True, slots=True)
class KeptPictures:
    """Decoded pictures of one tenant, which its next requests need not decode."""

    cache: PictureCache[Picture]
    tenant: str


def picture_of(
    data: bytes,
    rules: Rules,
    more: Sequence[bytes] = (),
    kept: KeptPictures | None = None,
    limit: TimeLimit | None = None,
) -> Picture:
    """Decode a file, or with the rules of a video its frames: an animated file, or one file each.
    Raises RequestError if it cannot be used, QuireError without Pillow for a picture."""
    num_bytes = len(data) + sum(map(len, more))
    if num_bytes > MAX_FILE_BYTES:
        raise RequestError(
            f"a file of {format_bytes(num_bytes)} is too large: at most "
            f"{format_bytes(MAX_FILE_BYTES)} are decoded"
        )
    if len(more) >= MAX_FRAMES:
        raise RequestError(f"a video must have at most {MAX_FRAMES} frames, not {1 + len(more)}")
    digest = picture_digest(rules, data, *more)
    if kept is not None and (known := kept.cache.get(kept.tenant, digest)) is not None:
        return known
    layout, pixels, used_s = decoded(data, rules, more)
    if limit is not None:
        limit.spend(used_s)
    found = Picture(digest, layout, bytes(pixels), rules.modality)
    if kept is not None:
        kept.cache.put(kept.tenant, digest, found, len(found.pixels))
    return found


def picture_digest(rules: Rules, *files: bytes) -> bytes:
    """Digest that identifies the tiles of a file, or of a video's frames. Parts are
    length-prefixed."""
    state = hashlib.sha256(b"quire.image.1")
    for part in (msgspec.msgpack.encode(rules), *files):
        state.update(struct.pack("<Q", len(part)))
        state.update(part)
    return state.digest()
