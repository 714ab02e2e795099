"""`VisionModel`: what a multimodal checkpoint does with a picture.

The front end reads `resizing` and `expansion`, the worker runs the programs. Knows no requests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from quire.images.rules import AnyResizing, Layout, Size

if TYPE_CHECKING:
    from quire.models.vision.tower import Tower
    from quire.program import Program

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class VisionModel:
    """The encoder of one checkpoint. A tile is encoded by itself: its patches are the rows of one
    step of the tower, `merge` joins rows, and the rows of the second step are the result."""

    family: str
    resizing: AnyResizing
    tower: Tower
    tower_program: Program
    projector: Program
    merge: Callable[[Floats, int], Floats]
    """Joins the hidden states [side * side, D] of a tile, without those of the class token."""
    rows_per_tile: int
    """Rows of the text model that a tile becomes."""
    placeholder: str
    """What stands for a picture in a prompt; chat templates write it."""
    row_token: str
    """The token that `expansion` has for each row."""
    row_token_id: int
    expansion: Callable[[Layout], str]
    """What takes the place of the placeholder, by the tiles of the picture."""
    prefixes: tuple[str, ...]
    """Possible prefixes of the tower's tensors in the checkpoint."""
    projector_prefixes: tuple[str, ...]

    def num_rows(self, layout: Layout) -> int:
        """Rows of the text model that a picture becomes."""
        return len(layout.sizes) * self.rows_per_tile

    def tiles(self, layout: Layout, pixels: bytes) -> list[NDArray[np.uint8]]:
        """The tiles of a picture, each [height, width, 3]."""
        found, begin = [], 0
        for size in layout.sizes:
            count = prod(size) * 3
            flat = np.frombuffer(pixels, np.uint8, count, begin)
            found.append(flat.reshape(*size, 3))
            begin += count
        return found

    def patches(self, tile: NDArray[np.uint8]) -> Floats:
        """The rows of a tile for the tower."""
        size, patch = (tile.shape[0], tile.shape[1]), self.tower.patch
        values = normalised(tile, self.resizing)
        rows, columns = size[0] // patch, size[1] // patch
        cut = values[: rows * patch, : columns * patch].reshape(rows, patch, columns, patch, 3)
        flat = cut.transpose(0, 2, 4, 1, 3).reshape(rows * columns, self.tower.patch_width)
        if not self.tower.class_row:
            return np.ascontiguousarray(flat)
        return np.concatenate([np.zeros((1, flat.shape[1]), np.float32), flat])


def normalised(tile: NDArray[np.uint8], resizing: AnyResizing) -> Floats:
    """The pixels as the model was trained on them, computed as transformers does: each channel has
    a table of 256 numbers."""
    levels = (np.arange(256, dtype=np.float64) * resizing.rescale).astype(np.float32)
    mean, std = np.array(resizing.mean, np.float32), np.array(resizing.std, np.float32)
    table = (levels[:, None] - mean) / std
    return np.stack([table[tile[..., channel], channel] for channel in range(3)], axis=-1)


def shuffled(hidden: Floats, side: int, factor: int) -> Floats:
    """Joins squares of `factor` x `factor` rows to one, row by row within a square."""
    parts = hidden.reshape(side // factor, factor, side // factor, factor, -1)
    width = factor * factor * hidden.shape[1]
    return np.ascontiguousarray(parts.transpose(0, 2, 1, 3, 4).reshape(-1, width))


def tile_rows(size: Size, patch: int) -> int:
    """Patches of a tile."""
    return (size[0] // patch) * (size[1] // patch)
