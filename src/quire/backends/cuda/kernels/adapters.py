"""Changes of rows by low-rank adapters: y += B (A x).

Row rule: a program has some rows that follow one another, and adds up the numbers of each tile by
tile. Rows of other adapters count as zeros and stay. So the bits of a row follow from the row and
its adapter alone.

`owners` has the number of each row's adapter in the step. With experts, a row of y is a pair of a
row and one of its experts.
"""

import triton
import triton.language as tl


@triton.jit
def _own_pairs(
    owners, chosen, number, expert, num_pairs, pairs_of_owner, has_experts, BLOCK_M: tl.constexpr
):  # fmt: skip
    """The pairs of this program, and whether the adapter changes each."""
    pair = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    is_there = pair < num_pairs
    is_own = tl.load(owners + pair // pairs_of_owner, mask=is_there, other=-1) == number
    if has_experts:
        is_own = is_own & (tl.load(chosen + pair, mask=is_there, other=-1) == expert)
    return pair, is_own & is_there


@triton.jit
def shrink(
    x, a, owners, chosen, token_ids, hidden, number, expert, num_pairs, pairs_of_owner,
    pairs_of_row, rank, K, scale, stride_x, has_experts, is_lookup, BLOCK_M: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """hidden = scale * (A x); or the rows of A of tokens, if `is_lookup`."""
    pair, is_own = _own_pairs(
        owners, chosen, number, expert, num_pairs, pairs_of_owner, has_experts, BLOCK_M
    )
    if tl.max(is_own.to(tl.int32), 0) > 0:
        rs = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R)
        stored = is_own[:, None] & (rs < rank)[None, :]
        total = tl.zeros([BLOCK_M, BLOCK_R], tl.float32)
        if is_lookup:
            token = tl.load(token_ids + pair, mask=is_own, other=0).to(tl.int64)
            lines = a + token[:, None] * rank + rs[None, :]
            total = tl.load(lines, mask=stored, other=0.0).to(tl.float32)
        else:
            row_at = pair // pairs_of_row * stride_x
            for first in range(0, K, BLOCK_K):
                at = first + tl.arange(0, BLOCK_K)
                is_x = is_own[:, None] & (at < K)[None, :]
                numbers = tl.load(x + row_at[:, None] + at[None, :], mask=is_x, other=0.0)
                is_a = (rs < rank)[None, :] & (at < K)[:, None]
                lines = a + rs.to(tl.int64)[None, :] * K + at[:, None]
                matrix = tl.load(lines, mask=is_a, other=0.0)
                if numbers.dtype != matrix.dtype:
                    numbers, matrix = numbers.to(tl.float32), matrix.to(tl.float32)
                total = tl.dot(numbers, matrix, acc=total, input_precision="ieee")
        tl.store(hidden + pair[:, None] * rank + rs[None, :], total * scale, mask=stored)


@triton.jit
def expand(
    hidden, b, bias, gains, added, y, owners, chosen, number, expert, num_pairs, pairs_of_owner,
    rank, N, scale, factor, stride_y, has_experts, has_bias, has_gains, has_added,
    BLOCK_M: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """y = (y + factor * (B hidden) + scale * bias) * gains. The bias of the weight itself, which y
    has already, is `added`: gains do not change it. `hidden` is float32, and so are the
    products."""
    pair, is_own = _own_pairs(
        owners, chosen, number, expert, num_pairs, pairs_of_owner, has_experts, BLOCK_M
    )
    if tl.max(is_own.to(tl.int32), 0) > 0:
        cols = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
        is_col = cols < N
        total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for first in range(0, rank, BLOCK_R):
            rs = first + tl.arange(0, BLOCK_R)
            is_b = is_col[None, :] & (rs < rank)[:, None]
            lines = b + cols.to(tl.int64)[None, :] * rank + rs[:, None]
            matrix = tl.load(lines, mask=is_b, other=0.0).to(tl.float32)
            is_hidden = is_own[:, None] & (rs < rank)[None, :]
            places = hidden + pair[:, None] * rank + rs[None, :]
            numbers = tl.load(places, mask=is_hidden, other=0.0)
            total = tl.dot(numbers, matrix, acc=total, input_precision="ieee")
        stored = is_own[:, None] & is_col[None, :]
        places = y + pair[:, None] * stride_y + cols[None, :]
        result = tl.load(places, mask=stored, other=0.0).to(tl.float32) + total * factor
        if has_bias:
            result += (tl.load(bias + cols, mask=is_col, other=0.0) * scale)[None, :]
        if has_gains:
            own = tl.zeros([BLOCK_N], tl.float32)
            if has_added:
                own = tl.load(added + cols, mask=is_col, other=0.0)
            gain = tl.load(gains + cols, mask=is_col, other=0.0)
            result = (result - own[None, :]) * gain[None, :] + own[None, :]
        tl.store(places, result.to(y.dtype.element_ty), mask=stored)
