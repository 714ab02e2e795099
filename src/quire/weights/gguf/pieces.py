"""Where a tensor of transformers' checkpoints lies in GGUF files: runs of bytes (`Piece`).

Most tensors are one tensor of a file. An expert's matrix is a part of one, of which nothing is
copied; gate and up may be two that become one.
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
"""Of tensors of all experts together: three for each of as many as a model may have, with biases,
and some room."""


@dataclass(frozen=True, slots=True)
class RawTensor:
    """A tensor as the file has it: [rows, blocks of a row, bytes of a block], a view of the map."""

    type_name: str
    shape: tuple[int, ...]
    blocks: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of a tensor of a file that lie one behind the other: all of them, or some."""

    tensor: GgufTensor
    file: MappedFile
    shape: tuple[int, ...]
    """As checkpoints of transformers have it."""
    offset: int
    """In the file."""
    num_bytes: int

    @property
    def type_name(self) -> str:
        return self.tensor.type.name

    def raw(self) -> RawTensor:
        """A view of the file."""
        kind = self.tensor.type
        data = self.file.slice(self.offset, self.num_bytes)
        blocks = data.reshape(-1, self.shape[-1] // kind.block_items, kind.block_bytes)
        return RawTensor(kind.name, self.shape, blocks)


def place_tensors(
    row: Architecture, headers: Sequence[GgufHeader], files: Sequence[MappedFile]
) -> dict[str, tuple[Piece, ...]]:
    """The pieces of each tensor of transformers, in the order of their rows.

    Raises CheckpointError for experts that are none, for a name that two tensors have, and for one
    half without the other.
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
    """All of them. Raises CheckpointError for a half alone."""
    for name, pieces in found.items():
        first = pieces[0][1]
        is_half = any(place.half is not None for place in row.places(first.tensor.name))
        if is_half and len(pieces) == 1:
            raise CheckpointError(
                f"{first.file.path}: tensor {first.tensor.name!r} is there, and the one that is "
                f"the other half of {name!r} is not"
            )
        yield name, pieces


def _check_halves(pieces: Sequence[tuple[int, Piece]], place: Place, path: Path) -> None:
    """Raises CheckpointError where a name is taken already."""
    halves = [half for half, _ in pieces]
    if len(set(halves)) == len(halves) and (len(halves) == 1 or place.half is not None):
        return
    first, second = (pieces[index][1].tensor.name for index in (0, -1))
    raise CheckpointError(
        f"{path}: tensors {first!r} and {second!r} are both {place.name!r}; one of them is wrong"
    )


def _pieces(
    tensor: GgufTensor, file: MappedFile, place: Place, path: Path
) -> Iterator[tuple[str, Piece]]:
    """The names that a tensor has, or a part of it, and where each lies."""
    shape = tensor.shape
    if place.is_row and len(shape) == 1:
        shape = (1, *shape)
    if not place.is_of_experts:
        yield place.name, Piece(tensor, file, shape, tensor.offset, tensor.num_bytes)
        return
    if not 2 <= len(shape) <= 3 or shape[0] > MAX_EXPERTS:
        raise CheckpointError(
            f"{path}: tensor {tensor.name!r} has shape {list(shape)}; experts in one tensor have "
            f"2 or 3 dimensions, and are {MAX_EXPERTS} at most"
        )
    count, *own = shape
    size = tensor.num_bytes // count
    if place.share is not None:
        if own[0] % 2:
            raise CheckpointError(
                f"{path}: tensor {tensor.name!r} has shape {list(shape)}; its rows are gates and "
                "ups, and so an even number"
            )
        own[0] //= 2
    part = size if place.share is None else size // 2
    begin = tensor.offset + (place.share or 0) * part
    for expert in range(count):
        name = place.name.replace(ANY_EXPERT, str(expert))
        yield name, Piece(tensor, file, tuple(own), begin + expert * size, part)


def joined_shape(pieces: Sequence[Piece]) -> tuple[int, ...]:
    """Of the tensor. Raises CheckpointError where halves do not fit together."""
    first = pieces[0].shape
    if len(pieces) == 1:
        return first
    if len(first) < 2 or any(piece.shape != first for piece in pieces):
        shapes = " and ".join(f"{piece.tensor.name} {list(piece.shape)}" for piece in pieces)
        raise CheckpointError(
            f"{pieces[0].file.path}: {shapes} are halves of one matrix, and unlike ones"
        )
    return (*first[:-2], len(pieces) * first[-2], first[-1])


def joined_bytes(pieces: Sequence[Piece]) -> tuple[NDArray[np.uint8], bool]:
    """The bytes of pieces of one type, as one tensor; and whether they are a view of the file."""
    parts = [piece.file.slice(piece.offset, piece.num_bytes) for piece in pieces]
    if len(parts) == 1:
        return parts[0], True
    count = prod(pieces[0].shape[:-2])
    rows = np.concatenate([part.reshape(count, -1) for part in parts], axis=1)
    return rows.reshape(-1), False
