"""The twins of `kernels/pointwise.py`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quire.backends.cuda.twins.numbers import Floats, Grid, Numbers, like, rows_of, widened
from quire.backends.reference.activations import activate, sigmoid
from quire.backends.reference.activations import glu as reference_glu
from quire.program import Activation

ACTIVATIONS: tuple[Activation, ...] = (
    "identity", "silu", "gelu", "gelu_tanh", "relu", "relu2", "gelu_quick", "tanh", "swiglu_oai"
)  # fmt: skip


def act(
    grid: Grid, x: Numbers, out: Numbers, width: int, stride_x: int, stride_out: int, ACT: int,
    BLOCK: int,
) -> None:  # fmt: skip
    """The reference's functions."""
    del BLOCK
    numbers = widened(rows_of(x, grid[0], stride_x, width))
    rows_of(out, grid[0], stride_out, width)[:] = like(activate(numbers, ACTIVATIONS[ACT]), out)


def glu(
    grid: Grid, gate: Numbers, up: Numbers, out: Numbers, width: int, stride_gate: int,
    stride_up: int, stride_out: int, ACT: int, BLOCK: int,
) -> None:  # fmt: skip
    """The reference's functions."""
    del BLOCK
    g = widened(rows_of(gate, grid[0], stride_gate, width))
    u = widened(rows_of(up, grid[0], stride_up, width))
    result = reference_glu(g, u, ACTIVATIONS[ACT])
    rows_of(out, grid[0], stride_out, width)[:] = like(result, out)


def combine(
    grid: Grid, x: Numbers, y: Numbers, out: Numbers, positions: NDArray[np.int32], width: int,
    a: float, stride_x: int, stride_y: int, step_y: int, stride_out: int, shift: int, period: int,
    OP: int, BLOCK: int,
) -> None:  # fmt: skip
    """Each number alone."""
    del BLOCK
    count = grid[0]
    p = widened(rows_of(x, count, stride_x, width))
    if OP == 0:
        result = p + _second(y, count, stride_y, step_y, width)
    elif OP == 1:
        result = p * a
    elif OP == 2:
        result = np.clip(p, -a, a)
    elif OP == 3:
        result = p * _second(y, count, stride_y, step_y, width)
    elif OP == 4:
        gate = _second(y, count, stride_y, step_y, width)
        result = p * sigmoid(gate.astype(np.float64)).astype(np.float32)
    elif OP == 5:
        result = a * np.tanh(p / a)
    elif OP == 6:
        periods = (positions[:count] + shift) // period
        result = p * (1.0 + a * np.log(1.0 + periods)).astype(np.float32)[:, None]
    else:
        result = p
    rows_of(out, count, stride_out, width)[:] = like(result.astype(np.float32), out)


def _second(y: Numbers, count: int, stride: int, step: int, width: int) -> Floats:
    rows = rows_of(y, count, stride, width if step else 1)
    return widened(rows)
