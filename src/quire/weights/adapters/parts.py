"""`AdapterWeights`: an adapter as a backend takes it."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class AdapterPart:
    """A low-rank change of some rows of a weight: y += scale * (B (A x) + bias), then y *= gains.

    For an embedding, A x is the row of A of the token id.
    """

    param: str
    """Name of the slot."""
    first_row: int
    """Counted over the rows of all experts, one expert after the other. A part changes one."""
    a: Floats
    """[rank, K]; for an embedding [V, rank]."""
    b: Floats
    """[rows, rank]."""
    scale: float
    bias: Floats | None = None
    gains: Floats | None = None
    is_embedding: bool = False

    @property
    def rank(self) -> int:
        rank: int = self.b.shape[1]
        return rank


@dataclass(frozen=True, slots=True)
class AdapterWeights:
    """All parts of an adapter."""

    parts: tuple[AdapterPart, ...]

    @property
    def rank(self) -> int:
        """The largest rank of a part."""
        return max(part.rank for part in self.parts)

    def digest(self) -> str:
        """SHA-256 of everything that is computed with, in hex digits."""
        state = hashlib.sha256(b"quire.adapter.1")
        for part in self.parts:
            numbers = (part.a, part.b, part.bias, part.gains)
            shapes = [() if array is None else array.shape for array in numbers]
            state.update(f"\n{part.param} {part.first_row} {part.is_embedding} {shapes} ".encode())
            state.update(struct.pack("<d", part.scale))
            for array in numbers:
                if array is not None:
                    state.update(np.ascontiguousarray(array).data)
        return state.hexdigest()
