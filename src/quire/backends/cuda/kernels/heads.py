"""The join of two values, head by head."""

import triton
import triton.language as tl


@triton.jit
def join(
    a, b, out, width_a, width_b, width, stride_a, stride_b, stride_out, BLOCK: tl.constexpr
):  # fmt: skip
    """Each head of out has `width_a` numbers of a, then `width_b` of b."""
    row = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    head, at = cols // (width_a + width_b), cols % (width_a + width_b)
    is_a, is_b = (cols < width) & (at < width_a), (cols < width) & (at >= width_a)
    first = tl.load(a + row * stride_a + head * width_a + at, mask=is_a, other=0.0)
    second = tl.load(b + row * stride_b + head * width_b + at - width_a, mask=is_b, other=0.0)
    tl.store(out + row * stride_out + cols, tl.where(is_a, first, second), mask=cols < width)
