"""The twins of `kernels/coded.py`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quire.backends.cuda.packing.layout import joined_halves
from quire.backends.cuda.twins.numbers import Floats, Grid, Numbers, like, rows_of, widened
from quire.weights.quantised.float_tables import E4M3

Bytes = NDArray[np.uint8]
Signed = NDArray[np.int8]


def multiply(
    grid: Grid, x: Numbers, x_scales: Floats, codes: NDArray[np.int8], scales: Floats, subs: Signed,
    zeros: Bytes, steps: Bytes, minima: Floats, min_subs: Signed, bias: Floats, y: Numbers,
    parts: Floats, low: int, high: int, num_rows: int, N: int, K: int, group: int, nest: int,
    x_group: int, stride_x: int, xs_row: int, xs_step: int, stride_codes: int, zeros_by_group: int,
    zeros_by_column: int, subs_by_group: int, subs_by_column: int, y_row: int, has_bias: int,
    STEP: int, CHUNK: int, SPLIT: int, KIND: int, BY_ROW: int, MINIMA: int, **_tile: int,
) -> None:  # fmt: skip
    """Products of one row with a chunk of the numbers that codes stand for at a time."""
    del grid
    packed = rows_of(codes, N, stride_codes, stride_codes)
    depth = stride_codes * (2 if KIND >= 2 else 1)
    places, factors = np.arange(depth) // group, np.ones((N, 1), np.float32)
    zeros_at = places[:, None] * zeros_by_group + np.arange(N) * zeros_by_column
    step = steps[places[:, None] * N + np.arange(N)].T if KIND == 4 else None
    levels = _levels(packed, zeros[zeros_at].T, step, (low, high), STEP, KIND)
    if BY_ROW:
        factors = scales[:N, None]
    else:
        subs_at = places[:, None] * subs_by_group + np.arange(N) * subs_by_column
        nests_at = np.arange(depth)[:, None] // nest * N + np.arange(N)
        levels = levels * (scales[nests_at] * subs[subs_at].astype(np.float32)).T
        if MINIMA:
            levels = levels + (minima[nests_at] * min_subs[subs_at].astype(np.float32)).T
    chunks = [np.ascontiguousarray(levels[:, at : at + CHUNK]) for at in range(0, K, CHUNK)]
    kept = parts[: len(chunks) * num_rows * N].reshape(len(chunks), num_rows, N) if SPLIT else None
    out, blocks = rows_of(y, num_rows, y_row, N), np.arange(K) // x_group * xs_step
    for row, stored in enumerate(rows_of(x, num_rows, stride_x, K)):
        numbers = widened(stored).astype(np.float32) * x_scales[row * xs_row + blocks]
        total = np.zeros(N, np.float32)
        for index, chunk in enumerate(chunks):
            own = numbers[index * CHUNK : (index + 1) * CHUNK]
            product = (chunk[:, : len(own)] @ own.copy()) * factors[:, 0]
            if kept is not None:
                kept[index, row] = product
            total = total + product
        if kept is None:
            out[row] = like(total + bias[:N] if has_bias else total, y)


def take(
    grid: Grid, places: NDArray[np.int32], codes: NDArray[np.int8], scales: Floats, subs: Signed,
    zeros: Bytes, steps: Bytes, minima: Floats, min_subs: Signed, out: Numbers, low: int, high: int,
    N: int, columns: int, factor: float, group: int, nest: int, half: int, stride_codes: int,
    zeros_by_group: int, zeros_by_column: int, subs_by_group: int, subs_by_column: int,
    has_minima: int, out_row: int, KIND: int, BY_ROW: int, BLOCK: int,
) -> None:  # fmt: skip
    """All rows at once: no number depends on another."""
    del BLOCK
    num_rows = grid[0]
    chosen = places[:num_rows].astype(np.int64)
    packed = rows_of(codes, N, stride_codes, stride_codes)[chosen]
    columns_of_row = np.arange(stride_codes * (2 if KIND >= 2 else 1))
    groups, nests_at = columns_of_row // group, columns_of_row // nest * N + chosen[:, None]
    subs_at = groups * subs_by_group + chosen[:, None] * subs_by_column
    zero = zeros[groups * zeros_by_group + chosen[:, None] * zeros_by_column]
    step = steps[groups * N + chosen[:, None]] if KIND == 4 else None
    numbers = _levels(packed, zero, step, (low, high), half, KIND)
    if BY_ROW:
        numbers = numbers * scales[chosen, None]
    else:
        numbers = numbers * (scales[nests_at] * subs[subs_at].astype(np.float32))
    if has_minima:
        numbers = numbers + minima[nests_at] * min_subs[subs_at].astype(np.float32)
    rows = numbers[:, :columns] * factor
    rows_of(out, num_rows, out_row, columns)[:] = like(rows, out)


def _levels(
    packed: NDArray[np.int8], zeros: Bytes, steps: Bytes | None, words: tuple[int, int], half: int,
    kind: int,
) -> Floats:  # fmt: skip
    """The numbers of codes [rows, columns]."""
    if kind == 0:
        return packed.astype(np.float32)
    if kind == 1:
        return E4M3[packed.view(np.uint8)]
    codes = joined_halves(packed.view(np.uint8), half).astype(np.int32)
    if kind == 3:
        codes = np.array(words, np.int64).view(np.int8).astype(np.int32)[codes]
    if steps is not None:
        codes = codes * steps
    levels: Floats = (codes - zeros).astype(np.float32)
    return levels
