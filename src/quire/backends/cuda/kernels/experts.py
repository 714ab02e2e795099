"""Products with the matrices of experts, and the sum of their results.

A pair is a row and one of its experts; pair p is that of row `p // top_k`. Row rule: that of
`products.py`; the results of a row's experts are added in the order of the experts.
"""

import triton
import triton.language as tl

from quire.backends.cuda.kernels.products import tile_product


@triton.jit
def expert_product(
    x, w, bias, y, found, lists, counts, num_rows, pairs_of_row, N, K, stride_x, stride_y,
    has_bias, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    CHUNK: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Row p of y = w[expert] @ x[p // pairs_of_row] + bias[expert], for the pairs of one tile."""
    expert, first = tl.load(found + 2 * tl.program_id(0)), tl.load(found + 2 * tl.program_id(0) + 1)
    if expert >= 0:
        places = first + tl.arange(0, BLOCK_M)
        count = tl.load(counts + expert)
        own = lists + expert.to(tl.int64) * num_rows
        # Places after the last one are computed from it, and are not stored.
        pair = tl.load(own + tl.minimum(places, count - 1)).to(tl.int64)
        cols = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
        row_at = pair // pairs_of_row * stride_x
        col_at = (expert.to(tl.int64) * N + tl.minimum(cols, N - 1)) * K
        total = tile_product(x, row_at, w, col_at, K, BLOCK_M, BLOCK_N, BLOCK_K, CHUNK, EVEN)
        if has_bias:
            added = tl.load(bias + expert * N + cols, mask=cols < N, other=0.0)
            total += added[None, :]
        stored = (places < count)[:, None] & (cols < N)[None, :]
        at = pair[:, None] * stride_y + cols[None, :]
        tl.store(y + at, total.to(y.dtype.element_ty), mask=stored)


@triton.jit
def weigh(x, routes, chosen, out, top_k, width, stride_x, stride_routes, BLOCK: tl.constexpr):
    """Row p of out = x[p // top_k] times its weight of the pair's expert."""
    pair = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    expert = tl.load(chosen + pair)
    if expert >= 0:
        row = pair // top_k
        weight = tl.load(routes + row * stride_routes + expert).to(tl.float32)
        numbers = tl.load(x + row * stride_x + cols, mask=cols < width, other=0.0).to(tl.float32)
        result = (numbers * weight).to(out.dtype.element_ty)
        tl.store(out + pair * width + cols, result, mask=cols < width)


@triton.jit
def mix(
    parts, routes, chosen, out, top_k, width, stride_routes, stride_out, has_weights,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """out = the sum of a row's results, each times its weight if `has_weights`."""
    row = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for k in range(0, top_k):
        expert = tl.load(chosen + row * top_k + k)
        if expert >= 0:
            at = (row * top_k + k) * width + cols
            part = tl.load(parts + at, mask=cols < width, other=0.0)
            if has_weights:
                part *= tl.load(routes + row * stride_routes + expert).to(tl.float32)
            total += part
    target = out + row * stride_out + cols
    tl.store(target, total.to(out.dtype.element_ty), mask=cols < width)
