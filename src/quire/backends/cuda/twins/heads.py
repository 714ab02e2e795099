"""The twins of `kernels/heads.py`."""

from __future__ import annotations

import numpy as np

from quire.backends.cuda.twins.numbers import Grid, Numbers, like, rows_of, widened
from quire.backends.cuda.twins.products import row_product


def head_product(
    grid: Grid, x: Numbers, w: Numbers, y: Numbers, num_rows: int, N: int, K: int, stride_x: int,
    stride_y: int, CHUNK: int, **_tile: int,
) -> None:  # fmt: skip
    """Row by row, head by head."""
    heads = grid[2]
    weights = widened(w[: heads * N * K]).reshape(heads, N, K)
    out = rows_of(y, num_rows, stride_y, heads * N)
    for row, numbers in enumerate(rows_of(x, num_rows, stride_x, heads * K)):
        own = widened(numbers).reshape(heads, K)
        found = [row_product(part, weights[head], CHUNK) for head, part in enumerate(own)]
        out[row] = like(np.concatenate(found), y)


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
