"""y = x @ w.T + bias, w [N, K] of the model's dtype; also with a matrix for each expert or head.

The row rule is that of `products.py`.
"""

import triton
import triton.language as tl

from quire.backends.cuda.kernels.products import (
    chunks_of_tile,
    rows_of_tile,
    store_tile,
    tile_product,
)


@triton.jit
def linear(
    x, w, bias, y, parts, found, lists, counts, num_rows, pairs_of_row, N, K, stride_x, stride_y,
    has_bias, has_experts, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    CHUNK: tl.constexpr, SPLIT: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """With SPLIT, program z computes chunk z; otherwise it computes head z of each row."""
    is_row, row, x_row, matrix, count = rows_of_tile(
        found, lists, counts, num_rows, pairs_of_row, has_experts, tl.arange(0, BLOCK_M), BLOCK_M
    )
    cols = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    x_at, y_at = x_row * stride_x, row * stride_y
    if not SPLIT:
        head = tl.program_id(2)
        matrix += head
        x_at += head * K
        y_at += head * N
    first_line = matrix.to(tl.int64) * N
    # Columns after the last one are computed from the last one, and are not stored.
    col_at = (first_line + tl.minimum(cols, N - 1)) * K
    first, end = chunks_of_tile(K, count, CHUNK, SPLIT)
    total = tile_product(x, x_at, w, col_at, first, end, K, BLOCK_M, BLOCK_N, BLOCK_K, CHUNK, EVEN)
    store_tile(
        total, bias, y, parts, first_line, y_at, row, cols, is_row, num_rows, N, has_bias, SPLIT
    )


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
