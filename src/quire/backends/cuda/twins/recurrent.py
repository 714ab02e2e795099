"""The twins of `kernels/recurrent.py`: the reference's functions, request by request."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.backends.cuda.twins.numbers import Floats, Grid, Numbers, like, rows_of, widened
from quire.backends.cuda.twins.states import requests_with_rows
from quire.backends.reference.ops import recurrent as reference
from quire.program import GatedDelta, Mamba, Param, Ssd, Value
from quire.program.recurrent_ops import chunk_width

Integers = NDArray[np.int32]
_SLOT = Param("slot", (1,), ())


def prepare(grid: Grid, k: Numbers, keys: Floats, key_dim: int, num_key_heads: int,
            stride_k: int, requests: Integers, **_others: Any) -> None:  # fmt: skip
    """Keeps the keys as they are: `scan` computes all of it."""
    rows = int(requests[: 4 * grid[0]].reshape(-1, 4)[:, 1].max(initial=0))
    width = int(num_key_heads * key_dim)
    keys[: rows * width].reshape(rows, width)[:] = widened(rows_of(k, rows, stride_k, width))


def keep(grid: Grid, **_arguments: Any) -> None:
    """`scan` has stored all of it."""
    del grid


def scan(
    grid: Grid, q: Numbers, keys: Floats, v: Numbers, a: Numbers, b: Numbers, a_log: Floats,
    dt_bias: Floats, d: Floats, totals: Floats, out: Numbers, cache: Floats, tables: Integers,
    entries: Integers, begins: Integers, requests: Integers, num_key_heads: int, key_dim: int,
    value_dim: int, decay_dim: int, is_tiled: int, q_scale: float, dt_min: float, dt_max: float,
    table_width: int, stride_block: int, stride_q: int, stride_v: int, stride_a: int,
    stride_b: int, stride_out: int, DELTA: int, **_sizes: int,
) -> None:  # fmt: skip
    """All heads of a request at once."""
    del q_scale, totals
    count, heads, _ = grid
    width = chunk_width(int(key_dim), int(value_dim), int(decay_dim))
    states = requests_with_rows(
        cache, tables, entries, begins, requests, count, heads, width, table_width, stride_block
    )
    key_width, inner, decays = num_key_heads * key_dim, heads * value_dim, heads * decay_dim
    key = Value("key", int(key_width))
    sizes = (int(heads), int(num_key_heads), int(key_dim), int(value_dim))
    for _, one in states:
        sources = (
            (q, stride_q, key_width), (keys, key_width, key_width), (v, stride_v, inner),
            (a, stride_a, decays), (b, stride_b, heads),
        )  # fmt: skip
        qs, ks, vs, steps, betas = (
            widened(rows_of(numbers, one.rows.stop, stride, wide)[one.rows])
            for numbers, stride, wide in sources
        )
        if DELTA:
            delta = GatedDelta(
                key, key, key, key, key, key, 0, *sizes, _SLOT, _SLOT, bool(is_tiled)
            )
            found = reference.gated_delta(
                delta, (qs, ks, vs, steps, betas), a_log[:heads], dt_bias[:decays], one
            )
        else:
            ssd = Ssd(
                key, key, key, key, key, 0, int(heads), int(num_key_heads), int(value_dim),
                int(key_dim), _SLOT, _SLOT, _SLOT, float(dt_min), float(dt_max),
            )  # fmt: skip
            weights = (a_log[:heads], dt_bias[:heads], d[:heads])
            found = reference.ssd(ssd, (vs, steps, ks, qs), weights, one)
        result = found.reshape(len(found), -1).astype(np.float32)
        rows_of(out, one.rows.stop, stride_out, inner)[one.rows] = like(result, out)


def mamba(
    grid: Grid, x: Numbers, dt: Numbers, b: Numbers, c: Numbers, a_log: Floats, dt_bias: Floats,
    d: Floats, out: Numbers, cache: Floats, tables: Integers, entries: Integers, begins: Integers,
    requests: Integers, dim: int, state_dim: int, channels: int, table_width: int,
    stride_block: int, stride_x: int, stride_dt: int, stride_b: int, stride_c: int,
    stride_out: int, **_sizes: int,
) -> None:  # fmt: skip
    """All channels of a request at once."""
    count, pieces = grid[:2]
    states = requests_with_rows(
        cache, tables, entries, begins, requests, count, pieces, 2 * channels * state_dim,
        table_width, stride_block,
    )  # fmt: skip
    value, narrow = Value("x", int(dim)), Value("b", int(state_dim))
    op = Mamba(value, value, narrow, narrow, value, 0, _SLOT, _SLOT, _SLOT)
    weights = (a_log[: dim * state_dim], dt_bias[:dim], d[:dim])
    for _, one in states:
        sources = (x, stride_x, dim), (dt, stride_dt, dim), (b, stride_b, state_dim), (
            c, stride_c, state_dim,
        )  # fmt: skip
        rows = [
            widened(rows_of(numbers, one.rows.stop, stride, wide)[one.rows])
            for numbers, stride, wide in sources
        ]
        result = reference.mamba(op, rows, weights, one).astype(np.float32)
        rows_of(out, one.rows.stop, stride_out, dim)[one.rows] = like(result, out)
