"""The convolution of each channel over a request's last tokens.

Row rule: a row's taps are added in order. The last rows of a request are stored in its state, the
one at position p in place p modulo their number, after all sums of the step are computed.
"""

import triton
import triton.language as tl

from quire.backends.cuda.kernels.recurrent import piece_of


@triton.jit
def _silu(x):
    return x / (1.0 + tl.exp(-x))


@triton.jit
def convolve(
    x, weight, bias, out, cache, tables, entries, begins, requests, request_of, dim, channels,
    num_taps, num_stored, table_width, stride_block, stride_x, stride_out, has_bias, is_silu,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """`CausalConv` for the channels of one piece of one token."""
    token, piece = tl.program_id(0), tl.program_id(1)
    request = tl.load(request_of + token)
    begin = tl.load(requests + 4 * request)
    position = tl.load(requests + 4 * request + 2) + token - begin
    ring = piece_of(cache, tables, entries, begins, request, piece, table_width, stride_block)
    at = tl.arange(0, BLOCK)
    cols = piece * channels + at
    is_col = (at < channels) & (cols < dim)
    total = tl.zeros([BLOCK], tl.float32)
    if has_bias:
        total = tl.load(bias + cols, mask=is_col, other=0.0)
    for tap in range(0, num_taps):
        back = num_taps - 1 - tap
        if position >= back:
            row, place = (token - back).to(tl.int64), (position - back) % num_stored
            # A condition for each channel: one for all of them would be a number in a mask.
            is_new = tl.zeros([BLOCK], tl.int64) + row >= begin
            new = tl.load(x + row * stride_x + cols, mask=is_col & is_new, other=0.0)
            old = tl.load(ring + place * channels + at, mask=is_col & ~is_new, other=0.0)
            factor = tl.load(weight + cols * num_taps + tap, mask=is_col, other=0.0)
            total += factor * tl.where(is_new, new.to(tl.float32), old)
    if is_silu:
        total = _silu(total)
    target = out + token.to(tl.int64) * stride_out + cols
    tl.store(target, total.to(out.dtype.element_ty), mask=is_col)


@triton.jit
def store(
    x, cache, tables, entries, begins, requests, request_of, dim, channels, num_stored,
    table_width, stride_block, stride_x, BLOCK: tl.constexpr,
):  # fmt: skip
    """The last rows of x of each request."""
    token, piece = tl.program_id(0), tl.program_id(1)
    request = tl.load(request_of + token)
    begin, end = tl.load(requests + 4 * request), tl.load(requests + 4 * request + 1)
    if end - token <= num_stored:
        place = (tl.load(requests + 4 * request + 2) + token - begin) % num_stored
        ring = piece_of(cache, tables, entries, begins, request, piece, table_width, stride_block)
        at = tl.arange(0, BLOCK)
        cols = piece * channels + at
        is_col = (at < channels) & (cols < dim)
        row = tl.load(x + token.to(tl.int64) * stride_x + cols, mask=is_col, other=0.0)
        tl.store(ring + place * channels + at, row.to(tl.float32), mask=is_col)
