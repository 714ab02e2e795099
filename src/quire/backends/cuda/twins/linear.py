"""The twins of `kernels/linear.py`."""

from __future__ import annotations

import numpy as np

from quire.backends.cuda.twins.numbers import Floats, Grid, Numbers, like, rows_of, widened


def linear(
    grid: Grid, x: Numbers, w: Numbers, bias: Floats, y: Numbers, parts: Floats, num_rows: int,
    N: int, K: int, stride_x: int, stride_y: int, has_bias: int, CHUNK: int, SPLIT: int,
    **_tile: int,
) -> None:  # fmt: skip
    """Products of one row with a chunk of the weight at a time."""
    del grid
    weight = widened(w[: N * K]).reshape(N, K)
    chunks = [np.ascontiguousarray(weight[:, at : at + CHUNK]) for at in range(0, K, CHUNK)]
    kept = parts[: len(chunks) * num_rows * N].reshape(len(chunks), num_rows, N) if SPLIT else None
    out = rows_of(y, num_rows, stride_y, N)
    for row, numbers in enumerate(rows_of(x, num_rows, stride_x, K)):
        total = np.zeros(N, np.float32)
        for index, chunk in enumerate(chunks):
            begin = index * CHUNK
            product = chunk @ widened(numbers[begin : begin + CHUNK]).copy()
            if kept is not None:
                kept[index, row] = product
            total = total + product
        if kept is None:
            out[row] = like(total + bias[:N] if has_bias else total, y)


def reduce(
    grid: Grid, parts: Floats, bias: Floats, y: Numbers, num_rows: int, N: int, num_chunks: int,
    stride_y: int, has_bias: int, BLOCK_N: int,
) -> None:  # fmt: skip
    """The chunks in order."""
    del grid, BLOCK_N
    total = np.zeros((num_rows, N), np.float32)
    for chunk in parts[: num_chunks * num_rows * N].reshape(num_chunks, num_rows, N):
        total = total + chunk
    rows_of(y, num_rows, stride_y, N)[:] = like(total + bias[:N] if has_bias else total, y)
