"""`GridPatches`: tiles of any size, whose patches have a row and a column as positions.

Patches are in squares of `merge` x `merge`, each of which becomes a row of the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quire.images.rules import Size
from quire.models.media.model import Floats, Ints, Patching, TileStep
from quire.program import Rotary, Tensor


@dataclass(frozen=True)
class GridPatches(Patching):
    """Patches of a tile whose sides are multiples of `patch * merge`."""

    patch: int
    merge: int
    frames: int
    """Number of times that a patch has its pixels: a picture is a video of equal frames."""
    num_parts: int = 1
    """Hidden states that the tower gives for a patch, side by side."""
    window: int = 0
    """Squares along each side of a window; 0: the tile is one window."""
    tables: tuple[Tensor, ...] = ()
    """The positions [side * side, D] that are interpolated and follow the pixels of a row."""
    most_patches: int = 0
    has_axes: bool = True
    """Whether the text has positions by place, too."""
    channels_first: bool = False
    """Whether a row of the projector has the numbers of all patches for one channel after the
    other, instead of patch after patch."""

    @property
    def most_rows(self) -> int:  # type: ignore[override]
        """The squares of the largest tile."""
        return max(1, self.most_patches // self.merge**2)

    def num_rows(self, size: Size) -> int:
        rows, columns = self.squares(size)
        return rows * columns

    def squares(self, size: Size) -> Size:
        """Rows and columns of squares in a tile."""
        unit = self.patch * self.merge
        return size[0] // unit, size[1] // unit

    def grid(self, size: Size) -> Size | None:
        return self.squares(size) if self.has_axes else None

    def step(self, values: Floats, tables: Sequence[Floats]) -> TileStep:
        frames = (
            values if values.ndim == 4 else np.broadcast_to(values, (self.frames, *values.shape))
        )
        size = (frames.shape[1], frames.shape[2])
        rows, columns = self.squares(size)
        cut = frames.reshape(-1, rows, self.merge, self.patch, columns, self.merge, self.patch, 3)
        squares = cut.transpose(1, 4, 2, 5, 7, 0, 3, 6).reshape(rows * columns, self.merge**2, -1)
        places, spans = self._places(size), None
        if self.window:
            order, spans = self._windows(size)
            squares, places = squares[order], places[order]
        pixels, places = squares.reshape(-1, squares.shape[2]), places.reshape(-1, 2)
        if tables:
            patches = (rows * self.merge, columns * self.merge)
            pixels = np.concatenate([pixels, _interpolated(tables[0], places, patches)], axis=1)
        return TileStep(pixels, axis_positions=places, spans=spans)

    def merged(self, hidden: Floats, size: Size, tables: Sequence[Floats]) -> Floats:
        del size, tables
        squares = hidden.reshape(len(hidden) // self.merge**2, self.merge**2, self.num_parts, -1)
        order = (0, 2, 3, 1) if self.channels_first else (0, 2, 1, 3)
        return np.ascontiguousarray(squares.transpose(order)).reshape(len(squares), -1)

    def ordered(self, rows: Floats, size: Size, tables: Sequence[Floats]) -> Floats:
        del tables
        if not self.window:
            return rows
        found = np.empty_like(rows)
        found[self._windows(size)[0]] = rows
        return found

    def _places(self, size: Size) -> Ints:
        """[squares, merge * merge, 2]; row and column of each patch."""
        rows, columns = self.squares(size)
        both = np.indices((rows * self.merge, columns * self.merge), np.int32)
        cut = both.reshape(2, rows, self.merge, columns, self.merge).transpose(1, 3, 2, 4, 0)
        places: Ints = cut.reshape(rows * columns, self.merge**2, 2)
        return places

    def _windows(self, size: Size) -> tuple[NDArray[np.intp], Ints]:
        """The squares in the order of windows, and the spans of the windows' patches."""
        rows, columns = self.squares(size)
        row, column = np.indices((rows, columns)).reshape(2, -1) // self.window
        window = row * -(-columns // self.window) + column
        order = np.argsort(window, kind="stable")
        _, first, counts = np.unique(window[order], return_index=True, return_counts=True)
        spans = np.stack([first, first + counts]) * self.merge**2
        return order, np.repeat(spans - [[0], [1]], counts * self.merge**2, axis=1).astype(np.int32)


def _interpolated(table: Floats, places: Ints, patches: Size) -> Floats:
    """The positions of a square grid at `places` [T, 2] of a grid of `patches`: the corners of both
    lie on each other, and numbers between four places are mixed."""
    side = int(len(table) ** 0.5)
    found = np.zeros((len(places), table.shape[1]), np.float32)
    taps, weights = zip(*(_taps(places[:, i], patches[i], side) for i in range(2)), strict=True)
    for row in range(2):
        for column in range(2):
            weight = weights[0][row] * weights[1][column]
            found += table[taps[0][row] * side + taps[1][column]] * weight[:, None]
    return found


def _taps(places: Ints, size: int, side: int) -> tuple[list[NDArray[np.intp]], list[Floats]]:
    """The two neighbours of each place in the table, and their weights, as transformers computes
    them in float32."""
    source = places.astype(np.float32) * np.float32(side - 1) / np.float32(max(size - 1, 1))
    floor = np.floor(source)
    taps = [np.clip(floor.astype(np.intp) + offset, 0, side - 1) for offset in range(2)]
    weights = [1 - np.abs(source - floor - np.float32(offset)) for offset in range(2)]
    return taps, weights


def axial_rotary(head_dim: int, theta: float) -> Rotary:
    """The first half of the frequencies turns by the row, the second by the column."""
    half = head_dim // 2
    frequencies = tuple(theta ** (-index / half) for index in range(0, half, 2))
    count = len(frequencies)
    return Rotary(frequencies * 2, axes=(0,) * count + (1,) * count)
