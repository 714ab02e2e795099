"""Changes of rows by low-rank adapters: y += B (A x).

Row rule: a program has one row, so that its bits follow from the row and its adapter alone.

`owners` has the number of each row's adapter in the step; rows of other adapters stay. With
experts, a row of y is a pair of a row and one of its experts.
"""

import triton
import triton.language as tl


@triton.jit
def _is_own(owners, chosen, number, expert, pairs_of_owner, has_experts):
    pair = tl.program_id(0)
    is_own = tl.load(owners + pair // pairs_of_owner) == number
    if has_experts:
        is_own = is_own & (tl.load(chosen + pair) == expert)
    return is_own


@triton.jit
def shrink(
    x, a, owners, chosen, token_ids, hidden, number, expert, pairs_of_owner, pairs_of_row, rank, K,
    scale, stride_x, has_experts, is_lookup, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """hidden = scale * (A x), tile by tile along K; or the row of A of a token, if `is_lookup`."""
    if _is_own(owners, chosen, number, expert, pairs_of_owner, has_experts):
        pair = tl.program_id(0).to(tl.int64)
        rs = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R)
        total = tl.zeros([BLOCK_R], tl.float32)
        if is_lookup:
            token = tl.load(token_ids + pair).to(tl.int64)
            total = tl.load(a + token * rank + rs, mask=rs < rank, other=0.0).to(tl.float32)
        else:
            for first in range(0, K, BLOCK_K):
                at = first + tl.arange(0, BLOCK_K)
                is_a = (rs < rank)[:, None] & (at < K)[None, :]
                line = a + rs.to(tl.int64)[:, None] * K + at[None, :]
                matrix = tl.load(line, mask=is_a, other=0.0).to(tl.float32)
                source = x + pair // pairs_of_row * stride_x + at
                numbers = tl.load(source, mask=at < K, other=0.0).to(tl.float32)
                total += tl.sum(matrix * numbers[None, :], 1)
        tl.store(hidden + pair * rank + rs, total * scale, mask=rs < rank)


@triton.jit
def expand(
    hidden, b, bias, gains, added, y, owners, chosen, number, expert, pairs_of_owner, rank, N,
    scale, factor, stride_y, has_experts, has_bias, has_gains, has_added, BLOCK_R: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """y = (y + factor * (B hidden) + scale * bias) * gains. The bias of the weight itself, which y
    has already, is `added`: gains do not change it."""
    if _is_own(owners, chosen, number, expert, pairs_of_owner, has_experts):
        pair = tl.program_id(0).to(tl.int64)
        cols = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
        is_col = cols < N
        total = tl.zeros([BLOCK_N], tl.float32)
        for first in range(0, rank, BLOCK_R):
            rs = first + tl.arange(0, BLOCK_R)
            is_b = is_col[:, None] & (rs < rank)[None, :]
            line = b + cols.to(tl.int64)[:, None] * rank + rs[None, :]
            matrix = tl.load(line, mask=is_b, other=0.0).to(tl.float32)
            numbers = tl.load(hidden + pair * rank + rs, mask=rs < rank, other=0.0)
            total += tl.sum(matrix * numbers[None, :], 1)
        place = y + pair * stride_y + cols
        result = tl.load(place, mask=is_col, other=0.0).to(tl.float32) + total * factor
        if has_bias:
            result += tl.load(bias + cols, mask=is_col, other=0.0) * scale
        if has_gains:
            own = tl.zeros([BLOCK_N], tl.float32)
            if has_added:
                own = tl.load(added + cols, mask=is_col, other=0.0)
            result = (result - own) * tl.load(gains + cols, mask=is_col, other=0.0) + own
        tl.store(place, result.to(y.dtype.element_ty), mask=is_col)
