"""The twin of `kernels/rounding.py`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quire.backends.cuda.twins.numbers import Floats, Grid, Numbers, like, rows_of, widened


def prepare(
    grid: Grid, x: Numbers, order: NDArray[np.int32], out: Numbers, scales: Floats, K: int,
    width: int, stride_x: int, stride_out: int, stride_scales: int, has_order: int, LINES: int,
    MODE: int,
) -> None:  # fmt: skip
    """Row by row."""
    del LINES
    target = rows_of(out, grid[0], stride_out, width)
    for row, stored in enumerate(rows_of(x, grid[0], stride_x, K)):
        numbers = widened(stored)
        numbers = np.pad(numbers[order[:K]] if has_order else numbers, (0, width - K))
        if MODE:
            blocks = numbers.reshape(-1 if MODE == 2 else 1, 32 if MODE == 2 else width)
            rounded, found = _rounded(blocks, is_finite=bool(np.isfinite(numbers).all()))
            numbers = rounded.reshape(-1)
            scales[row * stride_scales : row * stride_scales + len(found)] = found
        target[row] = numbers.astype(np.int8) if out.dtype == np.int8 else like(numbers, out)


def _rounded(blocks: Floats, *, is_finite: bool) -> tuple[Floats, Floats]:
    """Integers, and the scale of each block."""
    if not is_finite:
        return np.zeros_like(blocks), np.full(len(blocks), np.nan, np.float32)
    largest = np.abs(blocks).max(axis=1)
    inverse = np.zeros_like(largest)
    np.divide(np.float32(127), largest, out=inverse, where=largest > 0)
    return np.rint(blocks * inverse[:, None]), largest / np.float32(127)
