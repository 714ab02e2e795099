"""`PooledPatches`: tiles of any size, whose patches have learned positions by column and by row
(Gemma 4).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from quire.images.rules import Size
from quire.models.media.model import Floats, Patching, TileStep
from quire.program import Tensor


@dataclass(frozen=True, kw_only=True)
class PooledPatches(Patching):
    """Patches row by row, of a tile whose sides are multiples of `patch * merge`. A row of the text
    is the mean of `merge` x `merge` of them."""

    patch: int
    merge: int = 1
    factor: float = 1.0
    """Factor of the means."""
    tables: tuple[Tensor, ...]
    """The positions, by column and by row, and then what normalises the means: a bias that is
    subtracted, and a factor; or nothing."""
    most_rows: int
    sees_itself: bool = False
    places_first: bool = False
    """Whether the positions are [places, 2, D] instead of [2, places, D]."""
    channels_first: bool = False
    """Whether a patch has one channel after the other, instead of the channels of each pixel."""

    @property
    def most_patches(self) -> int:  # type: ignore[override]
        """The patches of the largest tile."""
        return self.most_rows * self.merge**2

    def num_rows(self, size: Size) -> int:
        unit = self.patch * self.merge
        return size[0] // unit * (size[1] // unit)

    def step(self, values: Floats, tables: Sequence[Floats]) -> TileStep:
        patch = self.patch
        rows, columns = values.shape[0] // patch, values.shape[1] // patch
        cut = values.reshape(rows, patch, columns, patch, 3)
        order = (0, 2, 4, 1, 3) if self.channels_first else (0, 2, 1, 3, 4)
        pixels = cut.transpose(order).reshape(rows * columns, -1)
        row, column = np.indices((rows, columns), np.int32).reshape(2, -1)
        by_column, by_row = np.moveaxis(tables[0], 1, 0) if self.places_first else tables[0]
        positions = by_column[column] + by_row[row]
        return TileStep(
            np.concatenate([pixels, positions], axis=1),
            axis_positions=np.stack([column, row], axis=1),
        )

    def merged(self, hidden: Floats, size: Size, tables: Sequence[Floats]) -> Floats:
        unit, merge = self.patch * self.merge, self.merge
        parts = hidden.reshape(size[0] // unit, merge, size[1] // unit, merge, -1)
        means: Floats = parts.mean(axis=(1, 3), dtype=np.float32).reshape(-1, hidden.shape[1])
        means *= np.float32(self.factor)
        if len(tables) > 1:
            means = (means - tables[1]) * tables[2]
        return means
