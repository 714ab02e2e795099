"""The twins of `kernels/experts.py`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quire.backends.cuda.twins.numbers import Floats, Grid, Numbers, like, rows_of, widened
from quire.backends.cuda.twins.products import row_product

Integers = NDArray[np.int32]


def expert_product(
    grid: Grid, x: Numbers, w: Numbers, bias: Floats, y: Numbers, found: Integers,
    lists: Integers, counts: Integers, num_rows: int, pairs_of_row: int, N: int, K: int,
    stride_x: int, stride_y: int, has_bias: int, BLOCK_M: int, CHUNK: int, **_tile: int,
) -> None:  # fmt: skip
    """Pair by pair."""
    for expert, first in found[: 2 * grid[0]].reshape(-1, 2).tolist():
        if expert < 0:
            continue
        weight = widened(w[expert * N * K : (expert + 1) * N * K]).reshape(N, K)
        own = lists[expert * num_rows :][first : min(first + BLOCK_M, counts[expert])]
        for pair in own.tolist():
            begin = pair // pairs_of_row * stride_x
            total = row_product(widened(x[begin : begin + K]), weight, CHUNK)
            if has_bias:
                total = total + bias[expert * N : (expert + 1) * N]
            y[pair * stride_y : pair * stride_y + N] = like(total, y)


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
