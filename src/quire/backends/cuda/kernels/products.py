"""The steps that products share: the rows of a tile, the sum over K, and the store of a tile.

Row rule: K is cut into chunks of CHUNK numbers. A chunk's products are summed in steps from 0, and
the chunks are added in order: by the same program, or by `reduce` from `parts` where the chunks are
divided among programs (SPLIT). Both do the same operations.
"""

import triton
import triton.language as tl


@triton.jit
def rows_of_tile(
    found, lists, counts, num_rows, pairs_of_row, has_experts, places, BLOCK_M: tl.constexpr
):  # fmt: skip
    """Which rows a tile has at some places: whether each is there, its number in y and in x, and
    the tile's expert and number of rows that are there, which may be 0. Rows after the last one are
    row 0.

    With experts, a row of y is a pair: a row of x and one of its experts, and `num_rows` is the
    room of an expert's list of pairs.
    """
    tile = tl.program_id(0)
    expert, begin, count = tile * 0, tile * BLOCK_M, num_rows
    if has_experts:
        expert, begin = tl.load(found + 2 * tile), tl.load(found + 2 * tile + 1)
        count = tl.load(counts + expert, mask=expert >= 0, other=0)
        expert = tl.maximum(expert, 0)
    place = begin + places
    is_row = place < count
    row = tl.where(is_row, place, 0).to(tl.int64)
    if has_experts:
        list_at = expert.to(tl.int64) * num_rows
        row = tl.load(lists + list_at + row, mask=is_row, other=0).to(tl.int64)
    return is_row, row, row // pairs_of_row, expert, tl.maximum(count - begin, 0)


@triton.jit
def chunks_of_tile(K, count, CHUNK: tl.constexpr, SPLIT: tl.constexpr):
    """The first chunk and the end of those that this program sums: none for a tile without rows."""
    begin, end = count * 0, tl.cdiv(K, CHUNK)
    if SPLIT:
        begin, end = tl.program_id(2), tl.program_id(2) + 1
    return begin, tl.where(count > 0, end, begin)


@triton.jit
def tile_product(
    x, row_at, w, col_at, first, end, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, CHUNK: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """[BLOCK_M, BLOCK_N]: rows of x that begin at `row_at` times rows of w that begin at
    `col_at`, over some chunks. EVEN: K is a multiple of BLOCK_K."""
    tl.static_assert(CHUNK % BLOCK_K == 0)
    steps = tl.arange(0, BLOCK_K)
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
    return total


@triton.jit
def store_tile(
    total, bias, y, parts, bias_at, y_at, row, cols, is_row, num_rows, N, has_bias,
    SPLIT: tl.constexpr,
):  # fmt: skip
    """Rows of y that begin at `y_at`, with the bias; with SPLIT, a chunk's part of each."""
    stored = is_row[:, None] & (cols < N)[None, :]
    if SPLIT:
        at = (tl.program_id(2).to(tl.int64) * num_rows + row) * N
        tl.store(parts + at[:, None] + cols[None, :], total, mask=stored)
    else:
        if has_bias:
            total += tl.load(bias + bias_at + cols, mask=cols < N, other=0.0)[None, :]
        at = y_at[:, None] + cols[None, :]
        tl.store(y + at, total.to(y.dtype.element_ty), mask=stored)
