"""The twin of `kernels/rope.py`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quire.backends.cuda.twins.numbers import Floats, Grid, Numbers, like, rows_of, widened


def rope(
    grid: Grid, x: Numbers, positions: NDArray[np.int32], axes: NDArray[np.int32],
    cosines: Floats, sines: Floats, out: Numbers, half: int, head_dim: int, num_axes: int,
    pair_step: int, pair_distance: int, stride_x: int, stride_out: int, BLOCK: int,
) -> None:  # fmt: skip
    """All heads of all rows: no number depends on another row."""
    del BLOCK
    rows, heads = grid
    source = rows_of(x, rows, stride_x, heads * head_dim)
    numbers = widened(source).reshape(rows, heads, head_dim).copy()
    chosen = rows_of(positions, rows, num_axes, num_axes)[:, axes[:half]]
    at = chosen.astype(np.int64) * half + np.arange(half)
    cosine, sine = cosines[at][:, None], sines[at][:, None]
    first = np.arange(half) * pair_step
    second = first + pair_distance
    a, b = numbers[..., first], numbers[..., second]
    numbers[..., first] = a * cosine - b * sine
    numbers[..., second] = b * cosine + a * sine
    rows_of(out, rows, stride_out, heads * head_dim)[:] = like(numbers.reshape(rows, -1), out)
