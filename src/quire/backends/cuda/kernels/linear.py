"""y = x @ w.T + bias, w [N, K] of the model's dtype.

Row rule: K is cut into chunks of CHUNK numbers. A chunk's products are summed in steps of BLOCK_K
from 0, and the chunks are added in order: by the same program, or by `reduce` from `parts` where
the chunks are divided among programs (SPLIT). Both do the same operations.
"""

import triton
import triton.language as tl


@triton.jit
def linear(
    x, w, bias, y, parts, num_rows, N, K, stride_x, stride_y, has_bias,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, CHUNK: tl.constexpr,
    SPLIT: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """EVEN: K is a multiple of BLOCK_K. With SPLIT, program z computes chunk z."""
    tl.static_assert(CHUNK % BLOCK_K == 0)
    tile_m, tile_n, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    # Rows and columns after the last one are computed from the last one, and are not stored.
    row_at = tl.minimum(rows, num_rows - 1).to(tl.int64) * stride_x
    col_at = tl.minimum(cols, N - 1).to(tl.int64) * K
    steps = tl.arange(0, BLOCK_K)
    first, end = 0, tl.cdiv(K, CHUNK)
    if SPLIT:
        first, end = split, split + 1
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for chunk in range(first, end):
        acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for k in range(chunk * CHUNK, tl.minimum((chunk + 1) * CHUNK, K), BLOCK_K):
            at = k + steps
            if EVEN:
                a = tl.load(x + row_at[:, None] + at[None, :])
                b = tl.load(w + col_at[:, None] + at[None, :])
            else:
                a = tl.load(x + row_at[:, None] + at[None, :], mask=(at < K)[None, :], other=0.0)
                b = tl.load(w + col_at[:, None] + at[None, :], mask=(at < K)[None, :], other=0.0)
            acc = tl.dot(a, tl.trans(b), acc=acc, input_precision="ieee")
        total += acc
    stored = (rows < num_rows)[:, None] & (cols < N)[None, :]
    if SPLIT:
        at = (split * num_rows + rows[:, None]).to(tl.int64) * N + cols[None, :]
        tl.store(parts + at, total, mask=stored)
    else:
        if has_bias:
            total += tl.load(bias + cols, mask=cols < N, other=0.0)[None, :]
        at = rows[:, None].to(tl.int64) * stride_y + cols[None, :]
        tl.store(y + at, total.to(y.dtype.element_ty), mask=stored)


@triton.jit
def reduce(parts, bias, y, num_rows, N, num_chunks, stride_y, has_bias, BLOCK_N: tl.constexpr):
    """The chunks of a row, added in order."""
    row = tl.program_id(0)
    cols = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros([BLOCK_N], tl.float32)
    for chunk in range(0, num_chunks):
        at = (chunk * num_rows + row).to(tl.int64) * N
        total += tl.load(parts + at + cols, mask=cols < N, other=0.0)
    if has_bias:
        total += tl.load(bias + cols, mask=cols < N, other=0.0)
    tl.store(y + row.to(tl.int64) * stride_y + cols, total.to(y.dtype.element_ty), mask=cols < N)
