"""Inputs and results of experts: `linear.py` and `coded.py` have their products.

A pair is a row and one of its experts; pair p is that of row `p // top_k`. Row rule: the results of
a row's experts are added in the order of the experts.
"""

import triton
import triton.language as tl


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
