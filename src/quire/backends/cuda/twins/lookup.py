"""The twin of `kernels/lookup.py`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quire.backends.cuda.twins.numbers import Grid, Numbers, like, rows_of, widened


def take(
    grid: Grid, table: Numbers, places: NDArray[np.int32], x: Numbers, out: Numbers, width: int,
    factor: float, offset: int, stride_table: int, stride_x: int, stride_out: int, has_x: int,
    BLOCK: int,
) -> None:  # fmt: skip
    """All rows at once: no number depends on another."""
    del BLOCK
    count = grid[0]
    chosen = places[:count] + offset
    rows = rows_of(table, int(chosen.max(initial=-1)) + 1, stride_table, width)[chosen]
    result = widened(rows) * factor
    if has_x:
        result = result + widened(rows_of(x, count, stride_x, width))
    rows_of(out, count, stride_out, width)[:] = like(result, out)
