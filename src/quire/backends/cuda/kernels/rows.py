"""Ops on whole rows, or with a few weights: curves, limits, what follows from a row's spread, means
over the rows of a request, and rows of zeros."""

import triton
import triton.language as tl

BLOCK_ROWS = tl.constexpr(16)
"""Rows whose sum is taken first."""


@triton.jit
def _softplus(x):
    return tl.maximum(x, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(x)))


@triton.jit
def _expm1(x):
    # Near 0 the difference loses digits, and a series has them.
    series = x * (1.0 + x * (0.5 + x * (0.16666667 + x * (0.041666668 + x * 0.008333334))))
    return tl.where(tl.abs(x) < 0.25, series, tl.exp(x) - 1.0)


@triton.jit
def curve(
    x, low, high, out, width, beta, eps, stride_x, stride_out, OP: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """OP 0: `Between`. OP 1: `Xielu`, whose weights `positive` and `negative` are low and high."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    p = tl.load(x + row * stride_x + at, mask=at < width, other=0.0).to(tl.float32)
    a, b = tl.load(low), tl.load(high)
    if OP == 0:
        result = tl.where(p != p, p, tl.maximum(a, tl.minimum(b, p)))
    else:
        bent = (_expm1(tl.minimum(p, eps)) - p) * (beta + _softplus(b))
        result = tl.where(p > 0.0, _softplus(a) * p * p, bent) + beta * p
        result = tl.where(p != p, p, result)
    tl.store(out + row * stride_out + at, result.to(out.dtype.element_ty), mask=at < width)


@triton.jit
def _moments(x, width, BLOCK: tl.constexpr):
    """The sum of a row's numbers, and of their squares, tile by tile."""
    total = tl.full([], 0.0, tl.float32)
    squares = tl.full([], 0.0, tl.float32)
    for begin in range(0, width, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        p = tl.load(x + at, mask=at < width, other=0.0).to(tl.float32)
        total += tl.sum(p, 0)
        squares += tl.sum(p * p, 0)
    return total, squares


@triton.jit
def spread(
    x, like, out, width, number, stride_x, stride_like, stride_out, OP: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """OP 0: `Outliers`, with `number` deviations. OP 1: `MatchRms`, with `number` as eps. A program
    has one row."""
    row = tl.program_id(0).to(tl.int64)
    total, squares = _moments(x + row * stride_x, width, BLOCK)
    size = width.to(tl.float32)
    if OP == 0:
        mean = total / size
        centred = tl.full([], 0.0, tl.float32)
        for begin in range(0, width, BLOCK):
            at = begin + tl.arange(0, BLOCK)
            p = tl.load(x + row * stride_x + at, mask=at < width, other=0.0).to(tl.float32)
            apart = tl.where(at < width, p - mean, 0.0)
            centred += tl.sum(apart * apart, 0)
        limit = mean + number * tl.sqrt(centred / size)
    else:
        _, wanted = _moments(like + row * stride_like, width, BLOCK)
        own = squares / size
        own = tl.where(own != own, own, tl.maximum(own, number))
        limit = tl.sqrt(wanted / size) / tl.sqrt(own)
    for begin in range(0, width, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        p = tl.load(x + row * stride_x + at, mask=at < width, other=0.0).to(tl.float32)
        if OP == 0:
            apart = p - limit
            result = tl.where(apart != apart, apart, tl.maximum(apart, 0.0))
        else:
            result = p * limit
        tl.store(out + row * stride_out + at, result.to(out.dtype.element_ty), mask=at < width)


@triton.jit
def mean(x, spans, out, width, stride_x, stride_out, BLOCK: tl.constexpr):
    """Row l of out = the mean of the rows of x from spans[2 l] to spans[2 l + 1]. Sums of
    BLOCK_ROWS rows are added in order."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    begin, end = tl.load(spans + 2 * row), tl.load(spans + 2 * row + 1)
    total = tl.zeros([BLOCK], tl.float32)
    for first in range(begin, end, BLOCK_ROWS):
        part = tl.zeros([BLOCK], tl.float32)
        for one in range(first, tl.minimum(first + BLOCK_ROWS, end)):
            source = x + (tl.zeros([], tl.int64) + one) * stride_x + at
            part += tl.load(source, mask=at < width, other=0.0).to(tl.float32)
        total += part
    total = total / (end - begin).to(tl.float32)
    tl.store(out + row * stride_out + at, total.to(out.dtype.element_ty), mask=at < width)


@triton.jit
def zero(out, width, stride_out, BLOCK: tl.constexpr):
    """Rows of zeros."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    zeros = tl.zeros([BLOCK], tl.float32).to(out.dtype.element_ty)
    tl.store(out + row * stride_out + at, zeros, mask=at < width)
