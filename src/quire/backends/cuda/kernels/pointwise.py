"""Ops that compute each number from those at the same place of their operands."""

import triton
import triton.language as tl


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def _tanh(x):
    # Near 0 the quotient loses digits, and a series has them.
    small = x * (1.0 + x * x * (-1.0 / 3.0 + x * x * (2.0 / 15.0)))
    large = 1.0 - 2.0 / (1.0 + tl.exp(2.0 * tl.minimum(tl.maximum(x, -20.0), 20.0)))
    return tl.where(x != x, x, tl.where(tl.abs(x) < 0.05, small, large))


@triton.jit
def _activated(x, ACT: tl.constexpr):
    """The numbers are those of `lowering/pointwise.py`, in the order of its list."""
    if ACT == 0:  # identity
        return x
    if ACT == 1:  # silu
        return x * _sigmoid(x)
    if ACT == 2:  # gelu
        return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    if ACT == 3:  # gelu_tanh
        return 0.5 * x * (1.0 + _tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))
    if ACT == 4:  # relu
        return tl.where(x != x, x, tl.maximum(x, 0.0))
    if ACT == 5:  # relu2
        positive = tl.where(x != x, x, tl.maximum(x, 0.0))
        return positive * positive
    if ACT == 6:  # gelu_quick
        return x * _sigmoid(1.702 * x)
    # tanh
    return _tanh(x)


@triton.jit
def act(x, out, width, stride_x, stride_out, ACT: tl.constexpr, BLOCK: tl.constexpr):
    """out = act(x)."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    numbers = tl.load(x + row * stride_x + at, mask=at < width, other=0.0).to(tl.float32)
    result = _activated(numbers, ACT).to(out.dtype.element_ty)
    tl.store(out + row * stride_out + at, result, mask=at < width)


@triton.jit
def glu(
    gate, up, out, width, stride_gate, stride_up, stride_out, ACT: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """out = act(gate) * up; activation 8 is that of gpt-oss, which has limits."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    g = tl.load(gate + row * stride_gate + at, mask=at < width, other=0.0).to(tl.float32)
    u = tl.load(up + row * stride_up + at, mask=at < width, other=0.0).to(tl.float32)
    if ACT == 8:
        limited = tl.where(g != g, g, tl.minimum(g, 7.0))
        bounded = tl.where(u != u, u, tl.minimum(tl.maximum(u, -7.0), 7.0))
        result = (bounded + 1.0) * limited * _sigmoid(1.702 * limited)
    else:
        result = _activated(g, ACT) * u
    tl.store(out + row * stride_out + at, result.to(out.dtype.element_ty), mask=at < width)


@triton.jit
def combine(
    x, y, out, positions, width, a, stride_x, stride_y, step_y, stride_out, shift, period,
    OP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One of the ops of `lowering/pointwise.py`, by its place in the list there. y has a number for
    each place (`step_y` 1) or one for a row (0); weights have a `stride_y` of 0."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    p = tl.load(x + row * stride_x + at, mask=at < width, other=0.0).to(tl.float32)
    q = tl.load(y + row * stride_y + at * step_y, mask=at < width, other=0.0).to(tl.float32)
    if OP == 0:  # add
        result = p + q
    elif OP == 1:  # scale
        result = p * a
    elif OP == 2:  # clamp
        result = tl.where(p != p, p, tl.minimum(tl.maximum(p, -a), a))
    elif OP == 3:  # multiply
        result = p * q
    elif OP == 4:  # gate
        result = p * _sigmoid(q)
    elif OP == 5:  # soft cap
        result = a * _tanh(p / a)
    elif OP == 6:  # position scale
        periods = (tl.load(positions + row) + shift) // period
        result = p * (1.0 + a * tl.log(1.0 + periods.to(tl.float32)))
    else:  # copy
        result = p
    tl.store(out + row * stride_out + at, result.to(out.dtype.element_ty), mask=at < width)
