"""RmsNorm and LayerNorm of rows, or of each head of a row.

Row rule: sums are taken over tiles of BLOCK numbers from the row's first number on, and the sums of
equal places of the tiles are added up once at the end.
"""

import triton
import triton.language as tl


@triton.jit
def norm(
    x, weight, bias, out, width, eps, offset, stride_x, stride_out, weight_step, has_weight,
    has_bias, BLOCK: tl.constexpr, CENTRED: tl.constexpr,
):  # fmt: skip
    """CENTRED: LayerNorm. A head's weights begin `weight_step` numbers after those of the one
    before it."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    source = x + row * stride_x + head * width
    target = out + row * stride_out + head * width
    places = tl.arange(0, BLOCK)
    mean = 0.0
    if CENTRED:
        sums = tl.zeros([BLOCK], tl.float32)
        for first in range(0, width, BLOCK):
            at = first + places
            sums += tl.load(source + at, mask=at < width, other=0.0).to(tl.float32)
        mean = tl.sum(sums, 0) / width
    squares = tl.zeros([BLOCK], tl.float32)
    for first in range(0, width, BLOCK):
        at = first + places
        numbers = tl.load(source + at, mask=at < width, other=0.0).to(tl.float32)
        numbers = tl.where(at < width, numbers - mean, 0.0)
        squares += numbers * numbers
    root = tl.sqrt_rn(tl.sum(squares, 0) / width + eps)
    for first in range(0, width, BLOCK):
        at = first + places
        numbers = tl.load(source + at, mask=at < width, other=0.0).to(tl.float32)
        result = (numbers - mean) / root
        if has_weight:
            factors = tl.load(weight + head * weight_step + at, mask=at < width, other=0.0)
            result = result * (factors + offset)
        if has_bias:
            result = result + tl.load(bias + at, mask=at < width, other=0.0)
        tl.store(target + at, result.to(out.dtype.element_ty), mask=at < width)
