"""Finds the bytes of each tensor of a transformers checkpoint in GGUF files (`Piece`).

Most tensors are one tensor of a file. The matrix of an expert is a part of one, and is not copied.
A matrix of gate and up may consist of two tensors, which are joined.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quire.errors import CheckpointError
from quire.gguf.architectures import Architecture, Place
from quire.gguf.architectures.expert_tensors import MAX_EXPERTS
from quire.gguf.architectures.row import ANY_EXPERT
from quire.gguf.container import GgufHeader, GgufTensor
from quire.weights.mapped_file import MappedFile

_MOST_NAMES = 1 << 19
"""Maximum number of tensors, those of every expert counted separately: enough for three matrices
and biases of the largest number of experts that a model may have."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive rows of a tensor in a file: all rows or some of them."""

    tensor: GgufTensor
    file: MappedFile
    shape: tuple[int, ...]
    """Shape of these rows in a transformers checkpoint."""
    offset: int
    """Offset of the first byte from the start of the file."""
    num_bytes: int

    @property
    def type_name(self) -> str:
        return self.tensor.type.name

    def raw(self) -> NDArray[np.uint8]:
        """Return [rows, blocks of a row, bytes of a block], a view of the file."""
        kind = self.tensor.type
        data = self.file.slice(self.offset, self.num_bytes)
        return data.reshape(-1, self.shape[-1] // kind.block_items, kind.block_bytes)


def place_tensors(
    row: Architecture, headers: Sequence[GgufHeader], files: Sequence[MappedFile]
) -> dict[str, tuple[Piece, ...]]:
    """Return the pieces of each tensor, by its name in transformers, in the order of their rows.

    Raises CheckpointError for a tensor of experts with a wrong shape, for a name that two tensors
    have, and for one half of a matrix without the other.
    """
    found: dict[str, list[tuple[int, Piece]]] = {}
    for header, file in zip(headers, files, strict=True):
        for tensor in header.tensors.values():
            for place in row.places(tensor.name):
                for name, piece in _pieces(tensor, file, place, header.path):
                    found.setdefault(name, []).append((place.half or 0, piece))
                    _check_halves(found[name], place, header.path)
                if len(found) > _MOST_NAMES:
                    raise CheckpointError(
                        f"{header.path}: its experts have more than {_MOST_NAMES} matrices"
                    )
    for pieces in found.values():
        pieces.sort(key=lambda item: item[0])
    return {name: tuple(piece for _, piece in pieces) for name, pieces in _complete(row, found)}


def _complete(
    row: Architecture, found: dict[str, list[tuple[int, Piece]]]
) -> Iterator[tuple[str, list[tuple[int, Piece]]]]:
    """Yield all items of `found`. Raises CheckpointError if one half of a matrix is missing."""
    for name, pieces in found.items():
        first = pieces[0][1]
        is_half = any(place.half is not None for place in row.places(first.tensor.name))
        if is_half and len(pieces) == 1:
            raise CheckpointError(
                f"{first.file.path}: tensor {first.tensor.name!r} is one half of {name!r}, and the "
                "tensor with the other half is missing"
            )
        yield name, pieces


def _check_halves(pieces: Sequence[tuple[int, Piece]], place: Place, path: Path) -> None:
    """Raises CheckpointError if two tensors have the same name and are not its two halves."""
    halves = [half for half, _ in pieces]
    if len(set(halves)) == len(halves) and (len(halves) == 1 or place.half is not None):
        return
    first, second = (pieces[index][1].tensor.name for index in (0, -1))
    raise CheckpointError(
        f"{path}: tensors {first!r} and {second!r} both stand for {place.name!r}; only one may"
    )


def _pieces(
    tensor: GgufTensor, file: MappedFile, place: Place, path: Path
) -> Iterator[tuple[str, Piece]]:
    """Yield the names in transformers of a tensor or its parts, with their pieces."""
    shape = tensor.shape
    if place.is_row and len(shape) == 1:
        shape = (1, *shape)
    elif place.form == "vector":
        shape = (prod(shape),)
    elif place.form == "conv" and len(shape) > 1:
        shape = (prod(shape[:-1]), 1, shape[-1])
    elif place.form == "frames" and len(shape) == 4:
        shape = (*shape[:2], 1, prod(shape[2:]))
    if not place.is_of_experts:
        yield place.name, Piece(tensor, file, shape, tensor.offset, tensor.num_bytes)
        return
    if not 2 <= len(shape) <= 3 or shape[0] > MAX_EXPERTS:
        raise CheckpointError(
            f"{path}: tensor {tensor.name!r} has shape {list(shape)}; experts in one tensor must "
            f"have 2 or 3 dimensions, and there must be at most {MAX_EXPERTS}"
        )
    count, *own = shape
    size = tensor.num_bytes // count
    if place.share is not None:
        if own[0] % 2:
            raise CheckpointError(
                f"{path}: tensor {tensor.name!r} has shape {list(shape)}; it holds gate and up, "
                "so the number of rows must be even"
            )
        own[0] //= 2
    part = size if place.share is None else size // 2
    begin = tensor.offset + (place.share or 0) * part
    for expert in range(count):
        name = place.name.replace(ANY_EXPERT, str(expert))
        yield name, Piece(tensor, file, tuple(own), begin + expert * size, part)


def joined_shape(pieces: Sequence[Piece]) -> tuple[int, ...]:
    """Return the shape of the whole tensor. Raises CheckpointError if its halves differ."""
    first = pieces[0].shape
    if len(pieces) == 1:
        return first
    if any(piece.shape != first for piece in pieces):
        shapes = " and ".join(f"{piece.tensor.name} {list(piece.shape)}" for piece in pieces)
        raise CheckpointError(
            f"{pieces[0].file.path}: {shapes} are parts of one tensor and must have the same shape"
        )
    rows = max(0, len(first) - 2)
    return (*first[:rows], len(pieces) * first[rows], *first[rows + 1 :])


def joined_bytes(pieces: Sequence[Piece]) -> tuple[NDArray[np.uint8], bool]:
    """Return the bytes of pieces of one type as one tensor, and whether they are a view of the
    file."""
    parts = [piece.file.slice(piece.offset, piece.num_bytes) for piece in pieces]
    if len(parts) == 1:
        return parts[0], True
    count = prod(pieces[0].shape[:-2])
    rows = np.concatenate([part.reshape(count, -1) for part in parts], axis=1)
    return rows.reshape(-1), False
