"""A tile of a product whose rows lie at given places: what products with many matrices share.

Row rule: that of `linear.py` without divided chunks. K is cut into chunks of CHUNK numbers, whose
products are summed in steps of BLOCK_K from 0, and the chunks are added in order.
"""

import triton
import triton.language as tl


@triton.jit
def tile_product(
    x, row_at, w, col_at, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    CHUNK: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """[BLOCK_M, BLOCK_N]: rows of x that begin at `row_at` times rows of w that begin at
    `col_at`. EVEN: K is a multiple of BLOCK_K."""
    tl.static_assert(CHUNK % BLOCK_K == 0)
    steps = tl.arange(0, BLOCK_K)
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for begin in range(0, K, CHUNK):
        acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for k in range(begin, tl.minimum(begin + CHUNK, K), BLOCK_K):
            at = k + steps
            if EVEN:
                a = tl.load(x + row_at[:, None] + at[None, :])
                b = tl.load(w + col_at[:, None] + at[None, :])
            else:
                a = tl.load(x + row_at[:, None] + at[None, :], mask=(at < K)[None, :], other=0.0)
                b = tl.load(w + col_at[:, None] + at[None, :], mask=(at < K)[None, :], other=0.0)
            acc = tl.dot(a, tl.trans(b), acc=acc, input_precision="ieee")
        total += acc
    return total
