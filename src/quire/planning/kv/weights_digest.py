"""`weights_digest`: identifies the weights of a model without reading all of them.

For each file it covers the size, the header, and pieces of the contents, at least one of every
tensor if the header has their offsets. Training changes numbers all over a tensor, so the digest
changes; it may miss a change of a few numbers. Names of directories and times are not covered: a
copy has the same digest.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from quire.config.checkpoint.model_files import parse_json_object
from quire.config.records import WeightSource
from quire.errors import CheckpointError
from quire.gguf.container import read_header
from quire.units import KiB, MiB
from quire.weights import PACKED_NAME, projector_file, weight_files
from quire.weights.packed_file import read_packed_header
from quire.weights.safetensors import MAX_HEADER_BYTES
from quire.weights.sharded import MAX_INDEX_BYTES

_PIECE_BYTES = 4 * KiB
_NUM_SPREAD = 64
"""Evenly spaced pieces of a file, in addition to those of its tensors."""
_NUM_SPREAD_ALONE = 512
"""Number of evenly spaced pieces if the header has no offsets of tensors."""
_TAIL_BYTES = 64 * KiB
"""Bytes read at the end. PyTorch's files have the archive's directory there, with a checksum of
each tensor."""
_WHOLE_BYTES = MiB
"""Files up to this size are read completely."""

Place = tuple[int, int]
"""Offset and length of a piece, in bytes."""


def weights_digest(path: Path, weights: WeightSource) -> str:
    """Return the digest of the weights in a model directory; for `dummy`, a name of the random
    generator.

    Returns "" if the weights are missing or cannot be found; loading reports the reason.
    """
    if weights == "dummy":
        return f"dummy NumPy {np.__version__}"
    try:
        files = [path / PACKED_NAME] if weights == "packed" else weight_files(path)
        if weights != "packed" and (encoder := projector_file(path)) is not None:
            files = [*files, encoder]
        digests = [f"{file.name} {_file_digest(file)}" for file in files]
    except (CheckpointError, OSError):
        return ""
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def _file_digest(path: Path) -> str:
    """Return the digest of a file. Raises OSError, or CheckpointError for unreadable packed
    weights."""
    state = hashlib.sha256()
    with path.open("rb") as file:
        descriptor = file.fileno()
        size = os.fstat(descriptor).st_size
        state.update(b"%d\n" % size)
        for offset, length in _places(path, descriptor, size):
            state.update(os.pread(descriptor, min(length, size - offset), offset))
    return state.hexdigest()


def _places(path: Path, descriptor: int, size: int) -> Iterator[Place]:
    """Yield the pieces of a file that are read."""
    if size <= _WHOLE_BYTES or path.suffix == ".json":
        yield 0, min(size, MAX_INDEX_BYTES)
        return
    if path.name == PACKED_NAME:
        yield 0, min(size, _PIECE_BYTES)  # includes the header's end, where its digest is
        tensors = [(one.offset, one.num_bytes) for one in read_packed_header(path).sections]
    elif path.suffix == ".gguf":
        placed = read_header(path).tensors.values()
        tensors = [(one.offset, one.num_bytes) for one in placed]
        yield 0, min([offset for offset, _ in tensors], default=size)
    else:
        header = _safetensors_header(descriptor, size) if path.suffix == ".safetensors" else b""
        yield 0, 8 + len(header)
        tensors = _tensors(header)
    for offset, length in tensors:
        yield from _middle(offset, length, size)
    yield from _spread(size, _NUM_SPREAD if tensors else _NUM_SPREAD_ALONE)
    yield max(0, size - _TAIL_BYTES), min(size, _TAIL_BYTES)


def _safetensors_header(descriptor: int, size: int) -> bytes:
    length = int.from_bytes(os.pread(descriptor, 8, 0), "little")
    return os.pread(descriptor, length, 8) if length <= min(MAX_HEADER_BYTES, size - 8) else b""


def _tensors(header: bytes) -> list[Place]:
    """Return the places of the tensors in a safetensors file; empty if the header is damaged."""
    try:
        entries = parse_json_object(header, "") if header else {}
    except CheckpointError:
        return []
    begin = 8 + len(header)
    found = [_span(entry) for name, entry in entries.items() if name != "__metadata__"]
    return [(begin + first, last - first) for first, last in filter(None, found)]


def _span(entry: Any) -> Place | None:
    match entry:
        case {"data_offsets": [int(first), int(last)]} if 0 <= first <= last:
            return first, last
    return None


def _middle(offset: int, length: int, size: int) -> Iterator[Place]:
    """Yield the middle of a tensor if the tensor lies in the file."""
    if length > 0 and offset + length <= size:
        piece = min(length, _PIECE_BYTES)
        yield offset + (length - piece) // 2, piece


def _spread(size: int, count: int) -> Iterator[Place]:
    """Yield evenly spaced pieces, including the start and the end of the file."""
    for index in range(count):
        yield index * (size - _PIECE_BYTES) // (count - 1), _PIECE_BYTES
