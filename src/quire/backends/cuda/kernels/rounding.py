"""Rows of activations as products with codes read them: rounded to 8 bits, or in another order.

Row rule: a program computes one row; the largest magnitude does not depend on an order.
"""

import triton
import triton.language as tl


@triton.jit
def prepare(
    x, order, out, scales, K, width, stride_x, stride_out, stride_scales, has_order,
    LINES: tl.constexpr, MODE: tl.constexpr,
):  # fmt: skip
    """out[row, j] = x[row, order[j]] for j < K, then zeros up to `width`. MODE 1: rounded to
    integers with a scale of the row, to nearest with ties to even; MODE 2: with a scale for each 32
    columns. A row that is not finite has scales of NaN."""
    row = tl.program_id(0)
    source, target = x + row.to(tl.int64) * stride_x, out + row.to(tl.int64) * stride_out
    lines = tl.arange(0, LINES)
    inside = lines[:, None] * 32 + tl.arange(0, 32)[None, :]
    largest = tl.full([], 0.0, tl.float32)
    bad = tl.full([], 0, tl.int32)
    if MODE > 0:
        for begin in range(0, K, LINES * 32):
            at = begin + inside
            numbers = tl.load(source + at, mask=at < K, other=0.0).to(tl.float32)
            # The difference of an infinity or a NaN with itself is not 0.
            bad = tl.maximum(bad, tl.max(tl.max((numbers - numbers != 0.0).to(tl.int32), 1), 0))
            largest = tl.maximum(largest, tl.max(tl.max(tl.abs(numbers), 1), 0))
        if MODE == 1:
            scale = tl.where(bad != 0, float("nan"), tl.div_rn(largest, 127.0))
            tl.store(scales + row * stride_scales, scale)
    for begin in range(0, width, LINES * 32):
        at = begin + inside
        chosen = at
        if has_order:
            chosen = tl.load(order + at, mask=at < K, other=0)
        numbers = tl.load(source + chosen, mask=at < K, other=0.0).to(tl.float32)
        if MODE > 0:
            most = tl.zeros([LINES, 1], tl.float32) + largest
            if MODE == 2:
                most = tl.max(tl.abs(numbers), 1)[:, None]
                scale = tl.where(bad != 0, float("nan"), tl.div_rn(most, 127.0))
                place = begin // 32 + lines[:, None]
                tl.store(scales + row * stride_scales + place, scale, mask=place * 32 < width)
            is_number = (most > 0.0) & (bad == 0)
            inverse = tl.div_rn(127.0, tl.where(is_number, most, 1.0))
            # Adding this number rounds to whole numbers.
            whole = (numbers * inverse + 12582912.0) - 12582912.0
            numbers = tl.where(is_number, whole, 0.0)
        tl.store(target + at, numbers.to(out.dtype.element_ty), mask=at < width)
