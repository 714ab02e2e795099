"""Rotary embedding with cosines and sines from tables, which the host computes exactly."""

import triton
import triton.language as tl


@triton.jit
def rope(
    x, positions, axes, cosines, sines, out, half, head_dim, num_axes, pair_step, pair_distance,
    stride_x, stride_out, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program turns one head: pair i is numbers `i * pair_step` and that one plus
    `pair_distance`. Numbers after the pairs pass through."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    source = x + row * stride_x + head * head_dim
    target = out + row * stride_out + head * head_dim
    pairs = tl.arange(0, BLOCK)
    for start in range(0, half, BLOCK):
        pair = start + pairs
        is_pair = pair < half
        axis = tl.load(axes + pair, mask=is_pair, other=0)
        position = tl.load(positions + row * num_axes + axis, mask=is_pair, other=0)
        at = position.to(tl.int64) * half + pair
        cosine = tl.load(cosines + at, mask=is_pair, other=0.0)
        sine = tl.load(sines + at, mask=is_pair, other=0.0)
        first, second = pair * pair_step, pair * pair_step + pair_distance
        a = tl.load(source + first, mask=is_pair, other=0.0).to(tl.float32)
        b = tl.load(source + second, mask=is_pair, other=0.0).to(tl.float32)
        turned_a, turned_b = a * cosine - b * sine, b * cosine + a * sine
        tl.store(target + first, turned_a.to(out.dtype.element_ty), mask=is_pair)
        tl.store(target + second, turned_b.to(out.dtype.element_ty), mask=is_pair)
    for start in range(2 * half, head_dim, BLOCK):
        at = start + pairs
        numbers = tl.load(source + at, mask=at < head_dim, other=0.0)
        tl.store(target + at, numbers, mask=at < head_dim)
