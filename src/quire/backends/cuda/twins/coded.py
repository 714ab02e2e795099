"""The twins of `kernels/coded.py`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quire.backends.cuda.packing.layout import joined_halves
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
from quire.weights.quantised.float_tables import E4M3

Bytes = NDArray[np.uint8]
Signed = NDArray[np.int8]


def multiply(
    grid: Grid, x: Numbers, x_scales: Floats, outliers: Integers, codes: Signed, scales: Floats,
    subs: Signed, zeros: Bytes, steps: Bytes, minima: Floats, min_subs: Signed, bias: Floats,
    y: Numbers, parts: Floats, found: Integers, lists: Integers, counts: Integers, low: int,
    high: int, num_rows: int, pairs_of_row: int, N: int, K: int, lines: int, group: int, nest: int,
    x_group: int, stride_x: int, xs_row: int, xs_step: int, stride_codes: int, zeros_by_group: int,
    zeros_by_column: int, subs_by_group: int, subs_by_column: int, y_row: int, has_bias: int,
    has_experts: int, BLOCK_M: int, STEP: int, CHUNK: int, SPLIT: int, KIND: int, BY_ROW: int,
    MINIMA: int, OUTLIERS: int, **_tile: int,
) -> None:  # fmt: skip
    """Products of one row with a chunk of the numbers that codes stand for at a time."""
    packed = rows_of(codes, lines, stride_codes, stride_codes)
    depth = stride_codes * (2 if KIND >= 2 else 1)
    places, all_lines = np.arange(depth) // group, np.arange(lines)
    zeros_at = places[:, None] * zeros_by_group + all_lines * zeros_by_column
    step = steps[places[:, None] * lines + all_lines].T if KIND == 4 else None
    levels = _levels(packed, zeros[zeros_at].T, step, (low, high), STEP, KIND)
    factors = scales[:lines] if BY_ROW else np.ones(lines, np.float32)
    if not BY_ROW:
        subs_at = places[:, None] * subs_by_group + all_lines * subs_by_column
        nests_at = np.arange(depth)[:, None] // nest * lines + all_lines
        levels = levels * (scales[nests_at] * subs[subs_at].astype(np.float32)).T
        if MINIMA:
            levels = levels + (minima[nests_at] * min_subs[subs_at].astype(np.float32)).T
    experts = [chunks_of(own[:, :K], CHUNK) for own in levels.reshape(-1, N, depth)]
    num_parts = len(experts[0]) + (OUTLIERS > 0)
    kept = part_places(parts, num_parts, num_rows, N) if SPLIT else None
    rows = rows_of_tiles(
        grid[0], found, lists, counts, num_rows, pairs_of_row, has_experts, BLOCK_M
    )
    blocks = np.arange(K) // x_group * xs_step
    for row, x_row, expert in rows:
        own = slice(expert * N, (expert + 1) * N)
        numbers = widened(x[x_row * stride_x : x_row * stride_x + K]).astype(np.float32)
        numbers = numbers * x_scales[x_row * xs_row + blocks]
        products = [
            times(chunk, numbers[index * CHUNK : (index + 1) * CHUNK]) * factors[own]
            for index, chunk in enumerate(experts[expert])
        ]
        if OUTLIERS:
            columns, rests = outliers[2 * OUTLIERS * x_row :][: 2 * OUTLIERS].reshape(2, -1)
            sums = (levels[own][:, columns] * rests).sum(axis=1, dtype=np.float32)
            products.insert(0, sums * factors[own] * x_scales[x_row * xs_row])
        store(products, kept, row, bias[own] if has_bias else None, y, row * y_row)


def take(
    grid: Grid, places: Integers, codes: Signed, scales: Floats, subs: Signed,
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
