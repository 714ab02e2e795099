"""The steps that kernels of attention share: blocks of queries, softmax of tiles, merge of chunks.

A block of queries has BLOCK_M rows of one request and one KV head: row r is query head
`r % group` of the KV head, of token `r // group`. Each row sees the positions from `first` to
`last` of its token, which the host has computed from windows, chunks and spans.

A part of a softmax is the largest score, the sum of weights and the sum of weighted values.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
NONE = tl.constexpr(-1.0e30)
"""The largest score of a row that has seen nothing yet."""
FIELDS = tl.constexpr(8)
"""Integers of a block of queries: its request, the request's first token in the step, the block's
first row among the request's rows, the number of these rows, and the first and the last position
that the block sees."""


@triton.jit
def rows_of_block(entry, visible, num_tokens, group, BLOCK_M: tl.constexpr):
    """The token and the head of each row, whether there is such a row, and what it sees."""
    begin, first_row, num_rows = tl.load(entry + 1), tl.load(entry + 2), tl.load(entry + 3)
    row = first_row + tl.arange(0, BLOCK_M)
    is_row = row < num_rows
    token = begin + row // group
    first = tl.load(visible + token, mask=is_row, other=0)
    last = tl.load(visible + num_tokens + token, mask=is_row, other=-1)
    return token, row % group, is_row, first, last


@triton.jit
def chunks_of_block(entry, CHUNK: tl.constexpr, SPLIT: tl.constexpr):
    """The first chunk and the end of those that this program reduces."""
    begin, end = tl.load(entry + 4) // CHUNK, tl.load(entry + 5) // CHUNK + 1
    if SPLIT:
        begin = tl.maximum(begin, tl.program_id(2))
        end = tl.minimum(end, tl.program_id(2) + 1)
    return begin, end


@triton.jit
def places_of_tile(table, tile, lowest, highest, page, TILE: tl.constexpr):
    """The positions of a tile, whether each is one that is read, and its block of the cache and
    place there."""
    at = tile + tl.arange(0, TILE)
    is_read = (at >= lowest) & (at <= highest)
    block = tl.load(table + at // page, mask=is_read, other=0).to(tl.int64)
    return at, is_read, block, (at % page).to(tl.int64)


@triton.jit
def empty_part(HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """A part that has seen nothing."""
    most = tl.full([HEIGHT], NONE, tl.float32)
    total = tl.zeros([HEIGHT], tl.float32)
    return most, total, tl.zeros([HEIGHT, WIDTH], tl.float32)


@triton.jit
def with_tile(
    top, weight, mixed, scores, is_seen, values, of_values, SCALED: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """A part and the next tile. `scores` are to base 2; `of_values` are scales of values."""
    scores = tl.where(is_seen, scores, NONE)
    new_top = tl.maximum(top, tl.max(scores, 1))
    weights = tl.where(is_seen, tl.exp2(scores - new_top[:, None]), 0.0)
    kept = tl.exp2(top - new_top)
    weight = weight * kept + tl.sum(weights, 1)
    mixed = mixed * kept[:, None]
    if SCALED:
        weights = weights * of_values[None, :]
    if WIDE:
        mixed = tl.dot(weights, values.to(tl.float32), acc=mixed, input_precision="ieee")
    else:
        mixed = tl.dot(weights.to(values.dtype), values, acc=mixed, input_precision="ieee")
    return new_top, weight, mixed


@triton.jit
def merged(most, total, result, top, weight, mixed):
    """A part and the part that follows it, as one."""
    new_most = tl.maximum(most, top)
    old, new = tl.exp2(most - new_most), tl.exp2(top - new_most)
    return new_most, total * old + weight * new, result * old[:, None] + mixed * new[:, None]


@triton.jit
def mean_of(most, total, result, sinks, sink_at, is_row, has_sinks):
    """The weighted mean of values. A sink is a score of each row's head that has no value."""
    if has_sinks:
        sink = tl.load(sinks + sink_at, mask=is_row, other=0.0) * LOG2E
        most, total, result = merged(most, total, result, sink, 1.0, 0.0)
    # Adding 0 makes the sign of a zero the same, however many tiles were added to it.
    return result / total[:, None] + 0.0


@triton.jit
def store_rows(out, at, width, cols, is_row, numbers):
    """Columns of rows that begin at `at`."""
    stored = is_row[:, None] & (cols < width)[None, :]
    tl.store(out + at[:, None] + cols[None, :], numbers.to(out.dtype.element_ty), mask=stored)


@triton.jit
def store_part(parts, line, width, cols, is_row, top, weight, mixed):
    """A part of each row, at a line of `parts`."""
    at = line * (width + 2)
    tl.store(parts + at, top, mask=is_row)
    tl.store(parts + at + 1, weight, mask=is_row)
    store_rows(parts, at + 2, width, cols, is_row, mixed)
