"""Rows of a table or of a value that are chosen by integers."""

import triton
import triton.language as tl


@triton.jit
def take(
    table, places, x, out, width, factor, offset, stride_table, stride_x, stride_out, has_x,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """out[row] = table[places[row] + offset] * factor, plus x[row] if there is an x."""
    row = tl.program_id(0)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    place = (tl.load(places + row) + offset).to(tl.int64)
    numbers = tl.load(table + place * stride_table + at, mask=at < width, other=0.0)
    result = numbers.to(tl.float32) * factor
    if has_x:
        added = tl.load(x + row.to(tl.int64) * stride_x + at, mask=at < width, other=0.0)
        result = result + added.to(tl.float32)
    target = out + row.to(tl.int64) * stride_out + at
    tl.store(target, result.to(out.dtype.element_ty), mask=at < width)
