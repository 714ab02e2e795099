"""The twins of `kernels/linear.py`."""

from __future__ import annotations

from functools import cache

import numpy as np

from quire.backends.cuda.twins.numbers import (
    Floats,
    Grid,
    Integers,
    Numbers,
    chunks_of,
    like,
    part_places,
    rows_of,
    rows_of_tiles,
    store,
    times,
    widened,
)


def linear(
    grid: Grid, x: Numbers, w: Numbers, bias: Floats, y: Numbers, parts: Floats, found: Integers,
    lists: Integers, counts: Integers, num_rows: int, pairs_of_row: int, N: int, K: int,
    stride_x: int, stride_y: int, has_bias: int, has_experts: int, BLOCK_M: int, CHUNK: int,
    SPLIT: int, **_tile: int,
) -> None:  # fmt: skip
    """Products of one row with a chunk of one matrix at a time."""

    @cache
    def matrix(number: int) -> list[Floats]:
        own = w[number * N * K : (number + 1) * N * K]
        return chunks_of(widened(own).reshape(N, K), CHUNK)

    kept = part_places(parts, len(matrix(0)), num_rows, N) if SPLIT else None
    rows = rows_of_tiles(
        grid[0], found, lists, counts, num_rows, pairs_of_row, has_experts, BLOCK_M
    )
    for row, x_row, expert in rows:
        for head in range(1 if SPLIT else grid[2]):
            first, number = x_row * stride_x + head * K, expert + head
            own = widened(x[first : first + K])
            products = [
                times(chunk, own[index * CHUNK : (index + 1) * CHUNK])
                for index, chunk in enumerate(matrix(number))
            ]
            added = bias[number * N : (number + 1) * N] if has_bias else None
            store(products, kept, row, added, y, row * stride_y + head * N)


def reduce(
    grid: Grid, parts: Floats, bias: Floats, y: Numbers, num_rows: int, N: int, num_chunks: int,
    stride_y: int, has_bias: int, BLOCK_N: int,
) -> None:  # fmt: skip
    """The chunks in order."""
    del grid, BLOCK_N
    total: Floats = np.zeros((num_rows, N), np.float32)
    for chunk in part_places(parts, num_chunks, num_rows, N):
        total = total + chunk
    rows_of(y, num_rows, stride_y, N)[:] = like(total + bias[:N] if has_bias else total, y)
