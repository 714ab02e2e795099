"""The twin of `kernels/norm.py`."""

from __future__ import annotations

import numpy as np

from quire.backends.cuda.twins.numbers import Floats, Grid, Numbers, like, rows_of, widened


def norm(
    grid: Grid, x: Numbers, weight: Floats, bias: Floats, out: Numbers, width: int, eps: float,
    offset: float, stride_x: int, stride_out: int, weight_step: int, has_weight: int,
    has_bias: int, BLOCK: int, CENTRED: int,
) -> None:  # fmt: skip
    """Each head of a row alone."""
    del BLOCK
    num_rows, num_heads = grid
    source = rows_of(x, num_rows, stride_x, num_heads * width)
    target = rows_of(out, num_rows, stride_out, num_heads * width)
    for row in range(num_rows):
        heads = widened(source[row]).reshape(num_heads, width)
        if CENTRED:
            heads = heads - heads.mean(axis=1, keepdims=True)
        squares = (heads * heads).mean(axis=1, keepdims=True)
        result = heads / np.sqrt(squares + eps)
        if has_weight:
            rows = [weight[head * weight_step :][:width] for head in range(num_heads)]
            result = result * (np.stack(rows) + offset)
        if has_bias:
            result = result + bias[:width]
        target[row] = like(result.reshape(-1), out)
