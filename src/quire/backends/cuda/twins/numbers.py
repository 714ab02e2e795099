"""How twins read and write the numbers of flat arrays, and rows of products."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.backends.kv_formats import narrow_to_bfloat16, widen_bfloat16
from quire.weights.quantised.float_tables import E4M3

Floats = NDArray[np.float32]
Numbers = NDArray[Any]
Grid = tuple[int, ...]
Integers = NDArray[np.int32]


def widened(numbers: Numbers, floats: int = 0) -> Floats:
    """float32 numbers, given those, the bits of bfloat16, integers, or codes of 8-bit floats."""
    if floats:
        return E4M3[numbers.view(np.uint8)]
    if numbers.dtype == np.uint16:
        return widen_bfloat16(numbers)
    return numbers if numbers.dtype == np.float32 else numbers.astype(np.float32)


def like(numbers: Floats, stored: Numbers) -> Numbers:
    """The numbers as an array of the type of `stored` holds them."""
    return narrow_to_bfloat16(numbers) if stored.dtype == np.uint16 else numbers


def rows_of(flat: Numbers, count: int, stride: int, width: int) -> Numbers:
    """A view [count, width] of rows that begin `stride` numbers after another. Raises ValueError if
    they are not all there."""
    if count and (count - 1) * stride + width > len(flat):
        raise ValueError(f"{count} rows of {width} with stride {stride} are not in {len(flat)}")
    steps = (stride * flat.itemsize, flat.itemsize)
    return np.lib.stride_tricks.as_strided(flat, (int(count), int(width)), steps)


def rows_of_tiles(
    num_tiles: int, found: Integers, lists: Integers, counts: Integers, num_rows: int,
    pairs_of_row: int, has_experts: int, height: int,
) -> Iterator[tuple[int, int, int]]:  # fmt: skip
    """The row of y, the row of x and the expert, for each row of all tiles, expert by expert."""
    if not has_experts:
        yield from ((row, row, 0) for row in range(num_rows))
        return
    for expert, first in found[: 2 * num_tiles].reshape(-1, 2).tolist():
        if expert < 0:
            continue
        own = lists[expert * num_rows :][first : min(first + height, counts[expert])]
        yield from ((pair, pair // pairs_of_row, expert) for pair in own.tolist())


def chunks_of(weight: Floats, chunk: int) -> list[Floats]:
    """The columns of a weight [N, K] in chunks."""
    starts = range(0, weight.shape[1], chunk)
    return [np.ascontiguousarray(weight[:, at : at + chunk]) for at in starts]


def times(matrix: Floats, row: Floats) -> Floats:
    """The products of the matrix's lines with a row. Unlike those of BLAS, they do not depend on
    how many lines there are."""
    products: Floats = np.einsum("nk,k->n", matrix, row)
    return products


def part_places(parts: Floats, num_parts: int, num_rows: int, width: int) -> Floats:
    """A view [parts, rows, N]."""
    return parts[: num_parts * num_rows * width].reshape(num_parts, num_rows, width)


def store(
    products: list[Floats], kept: Floats | None, row: int, bias: Floats | None, y: Numbers, at: int
) -> None:
    """The sum of a row's chunks in order, or each chunk's part."""
    if kept is not None:
        kept[:, row] = products
        return
    total: Any = np.zeros(len(products[0]), np.float32)
    for product in products:
        total = total + product
    y[at : at + len(total)] = like(total if bias is None else total + bias, y)
