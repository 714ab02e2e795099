"""The twin of `kernels/heads.py`."""

from __future__ import annotations

import numpy as np

from quire.backends.cuda.twins.numbers import Grid, Numbers, rows_of


def join(
    grid: Grid, a: Numbers, b: Numbers, out: Numbers, width_a: int, width_b: int, width: int,
    stride_a: int, stride_b: int, stride_out: int, BLOCK: int,
) -> None:  # fmt: skip
    """All rows at once."""
    del BLOCK
    heads = int(width // (width_a + width_b))
    parts = (
        rows_of(numbers, grid[0], stride, heads * size).reshape(grid[0], heads, size)
        for numbers, stride, size in ((a, stride_a, width_a), (b, stride_b, width_b))
    )
    joined = np.concatenate(list(parts), axis=2)
    rows_of(out, grid[0], stride_out, width)[:] = joined.reshape(grid[0], width)
