"""The twins of `kernels/rows.py`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quire.backends.cuda.twins.numbers import Floats, Grid, Numbers, rows_of, widened
from quire.backends.cuda.twins.numbers import like as stored_like

_BLOCK_ROWS = 16


def curve(
    grid: Grid, x: Numbers, low: Floats, high: Floats, out: Numbers, width: int, beta: float,
    eps: float, stride_x: int, stride_out: int, OP: int, BLOCK: int,
) -> None:  # fmt: skip
    """In float64."""
    del BLOCK
    p = widened(rows_of(x, grid[0], stride_x, width)).astype(np.float64)
    a, b = float(low[0]), float(high[0])
    if OP == 0:
        result = np.maximum(a, np.minimum(b, p))
    else:
        bent = (np.expm1(np.minimum(p, eps)) - p) * (beta + np.logaddexp(0.0, b))
        result = np.where(p > 0, np.logaddexp(0.0, a) * p * p, bent) + beta * p
    _store(out, stride_out, result)


def spread(
    grid: Grid, x: Numbers, like: Numbers, out: Numbers, width: int, number: float, stride_x: int,
    stride_like: int, stride_out: int, OP: int, BLOCK: int,
) -> None:  # fmt: skip
    """In float64, row by row."""
    del BLOCK
    p = widened(rows_of(x, grid[0], stride_x, width)).astype(np.float64)
    if OP == 0:
        limit = p.mean(axis=1, keepdims=True) + number * p.std(axis=1, keepdims=True)
        result = np.maximum(p - limit, 0.0)
    else:
        other = widened(rows_of(like, grid[0], stride_like, width)).astype(np.float64)
        wanted, own = (np.square(one).mean(axis=1, keepdims=True) for one in (other, p))
        result = p * np.sqrt(wanted) / np.sqrt(np.maximum(own, number))
    _store(out, stride_out, result)


def mean(
    grid: Grid, x: Numbers, spans: NDArray[np.int32], out: Numbers, width: int, stride_x: int,
    stride_out: int, BLOCK: int,
) -> None:  # fmt: skip
    """Row by row, some rows at a time."""
    del BLOCK
    found = np.zeros((grid[0], width), np.float32)
    for row, (begin, end) in enumerate(spans[: 2 * grid[0]].reshape(-1, 2).tolist()):
        numbers = widened(rows_of(x, end, stride_x, width)[begin:end])
        for first in range(0, end - begin, _BLOCK_ROWS):
            found[row] += numbers[first : first + _BLOCK_ROWS].sum(axis=0)
        found[row] /= np.float32(end - begin)
    _store(out, stride_out, found)


def zero(grid: Grid, out: Numbers, width: int, stride_out: int, BLOCK: int) -> None:
    """All rows at once."""
    del BLOCK
    rows_of(out, grid[0], stride_out, width)[:] = 0


def _store(out: Numbers, stride: int, rows: NDArray[np.floating]) -> None:
    target = rows_of(out, len(rows), stride, rows.shape[1])
    target[:] = stored_like(rows.astype(np.float32), out)
