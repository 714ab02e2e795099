"""The twin of `kernels/rounding.py`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quire.backends.cuda.twins.numbers import Floats, Grid, Numbers, like, rows_of, widened

_OUTLIERS = 4
_TIMES = np.float32(1.5)


def prepare(
    grid: Grid, x: Numbers, order: NDArray[np.int32], out: Numbers, scales: Floats,
    outliers: NDArray[np.int32], K: int, width: int, stride_x: int, stride_out: int,
    stride_scales: int, has_order: int, LINES: int, MODE: int,
) -> None:  # fmt: skip
    """Row by row."""
    del LINES
    target = rows_of(out, grid[0], stride_out, width)
    for row, stored in enumerate(rows_of(x, grid[0], stride_x, K)):
        numbers = widened(stored)
        numbers = np.pad(numbers[order[:K]] if has_order else numbers, (0, width - K))
        if MODE:
            blocks = numbers.reshape(-1 if MODE == 2 else 1, 32 if MODE == 2 else width)
            largest = np.abs(blocks).max(axis=1)
            if MODE == 3:
                columns, largest = _outliers(numbers)
            if not np.isfinite(numbers).all():
                largest = np.full_like(largest, np.nan)
            whole = _rounded(blocks, largest)
            numbers = np.clip(whole, -127, 127).reshape(-1)
            scales[row * stride_scales : row * stride_scales + len(largest)] = largest / np.float32(
                127
            )
            if MODE == 3:
                rests = (whole.reshape(-1) - numbers)[columns]
                own = outliers[2 * _OUTLIERS * row :][: 2 * _OUTLIERS]
                own[:] = np.concatenate([columns, rests.astype(np.int32)])
        target[row] = numbers.astype(np.int8) if out.dtype == np.int8 else like(numbers, out)


def _outliers(numbers: Floats) -> tuple[NDArray[np.intp], Floats]:
    """The columns that may be outliers, and the largest magnitude of the others [1]."""
    magnitudes = np.abs(numbers)
    order = np.argsort(-magnitudes, kind="stable")
    first = magnitudes[order[: _OUTLIERS + 1]]
    number = int((first[:_OUTLIERS] > _TIMES * first[_OUTLIERS]).sum())
    largest = np.maximum(first[number], first[0] * np.float32(1 / 256))
    return order[:_OUTLIERS], largest[None]


def _rounded(blocks: Floats, largest: Floats) -> Floats:
    """Whole numbers; zeros for blocks of zeros, and of rows that are not finite."""
    inverse = np.zeros_like(largest)
    np.divide(np.float32(127), largest, out=inverse, where=largest > 0)
    is_number = np.isfinite(largest)[:, None]
    found: Floats = np.where(is_number, np.rint(blocks * inverse[:, None]), np.float32(0))
    return found
