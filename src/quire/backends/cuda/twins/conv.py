"""The twins of `kernels/conv.py`, request by request."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from quire.backends.cuda.twins.numbers import Floats, Grid, Numbers, like, rows_of, widened
from quire.backends.cuda.twins.states import requests_with_rows
from quire.backends.reference.activations import ACTIVATIONS
from quire.backends.reference.ops import recurrent as reference
from quire.program import CausalConv, Param, Value

Integers = NDArray[np.int32]


def convolve(
    grid: Grid, x: Numbers, weight: Floats, bias: Floats, out: Numbers, cache: Floats,
    tables: Integers, entries: Integers, begins: Integers, requests: Integers,
    request_of: Integers, dim: int, channels: int, num_taps: int, num_stored: int,
    table_width: int, stride_block: int, stride_x: int, stride_out: int, has_bias: int,
    is_silu: int, BLOCK: int,
) -> None:  # fmt: skip
    """The reference's function, with a copy of the stored rows."""
    del BLOCK
    tokens, pieces = grid
    states = requests_with_rows(
        cache, tables, entries, begins, requests, int(request_of[tokens - 1]) + 1, pieces,
        num_stored * channels, table_width, stride_block,
    )  # fmt: skip
    value = Value("x", int(dim))
    op = CausalConv(value, (value,), 0, int(num_taps), Param("weight", (1,), ()))
    for _, one in states:
        rows = widened(rows_of(x, one.rows.stop, stride_x, dim)[one.rows])
        copied = replace(one, pieces=[piece.copy() for piece in one.pieces])
        own_bias = bias[:dim] if has_bias else None
        sums = reference.convolve(op, rows, weight[: dim * num_taps], own_bias, copied)
        result = ACTIVATIONS["silu"](sums) if is_silu else sums
        rows_of(out, one.rows.stop, stride_out, dim)[one.rows] = like(
            result.astype(np.float32), out
        )


def store(
    grid: Grid, x: Numbers, cache: Floats, tables: Integers, entries: Integers, begins: Integers,
    requests: Integers, request_of: Integers, dim: int, channels: int, num_stored: int,
    table_width: int, stride_block: int, stride_x: int, BLOCK: int,
) -> None:  # fmt: skip
    """Piece by piece."""
    del BLOCK
    tokens, pieces = grid
    states = requests_with_rows(
        cache, tables, entries, begins, requests, int(request_of[tokens - 1]) + 1, pieces,
        num_stored * channels, table_width, stride_block,
    )  # fmt: skip
    for _, one in states:
        rows = widened(rows_of(x, one.rows.stop, stride_x, dim)[one.rows])[-num_stored:]
        end = one.position + one.rows.stop - one.rows.start
        places = np.arange(end - len(rows), end) % num_stored
        for number, piece in enumerate(one.pieces):
            part = rows[:, number * channels : (number + 1) * channels]
            piece.reshape(num_stored, channels)[places, : part.shape[1]] = part
