"""The twins of `kernels/experts.py`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quire.backends.cuda.twins.numbers import Floats, Grid, Numbers, like, rows_of, widened

Integers = NDArray[np.int32]


def weigh(
    grid: Grid, x: Numbers, routes: Numbers, chosen: Integers, out: Numbers, top_k: int,
    width: int, stride_x: int, stride_routes: int, BLOCK: int,
) -> None:  # fmt: skip
    """Pair by pair."""
    del BLOCK
    for pair in np.flatnonzero(chosen[: grid[0]] >= 0).tolist():
        row = pair // top_k
        weight = widened(routes[row * stride_routes + chosen[pair] :][:1])
        numbers = widened(x[row * stride_x : row * stride_x + width])
        out[pair * width : (pair + 1) * width] = like(numbers * weight, out)


def mix(
    grid: Grid, parts: Floats, routes: Numbers, chosen: Integers, out: Numbers, top_k: int,
    width: int, stride_routes: int, stride_out: int, has_weights: int, BLOCK: int,
) -> None:  # fmt: skip
    """Row by row."""
    del BLOCK
    for row, target in enumerate(rows_of(out, grid[0], stride_out, width)):
        total = np.zeros(width, np.float32)
        for pair in range(row * top_k, (row + 1) * top_k):
            if chosen[pair] < 0:
                continue
            part = parts[pair * width : (pair + 1) * width]
            if has_weights:
                part = part * widened(routes[row * stride_routes + chosen[pair] :][:1])
            total = total + part
        target[:] = like(total, out)
