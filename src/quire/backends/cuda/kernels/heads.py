"""Ops on each head of a row: products with a matrix of its own, and the join of two values."""

import triton
import triton.language as tl

from quire.backends.cuda.kernels.products import tile_product


@triton.jit
def head_product(
    x, w, y, num_rows, N, K, stride_x, stride_y, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, CHUNK: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Head h of y = w[h] @ head h of x; the last place of the grid is h. Row rule: that of
    `products.py`."""
    head = tl.program_id(2).to(tl.int64)
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    row_at = tl.minimum(rows, num_rows - 1).to(tl.int64) * stride_x + head * K
    col_at = (head * N + tl.minimum(cols, N - 1)) * K
    total = tile_product(x, row_at, w, col_at, K, BLOCK_M, BLOCK_N, BLOCK_K, CHUNK, EVEN)
    at = rows[:, None].to(tl.int64) * stride_y + head * N + cols[None, :]
    stored = (rows < num_rows)[:, None] & (cols < N)[None, :]
    tl.store(y + at, total.to(y.dtype.element_ty), mask=stored)


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
