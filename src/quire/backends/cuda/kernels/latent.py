"""Paged attention of heads that share one row of K, of which V is the first part.

The cache has two arrays for a layer: the latent part, which is V too, and the rotary part of K. A
block of queries is that of `attention.py`, with all heads as one group; so is the row rule.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
NONE = tl.constexpr(-1.0e30)
FIELDS = tl.constexpr(8)


@triton.jit
def _scores(
    total, q_at, first, width, is_row, cache, k_at, is_read, STEP: tl.constexpr
):  # fmt: skip
    """Adds the products of queries and keys over `width` numbers, which are those of q from `first`
    on."""
    for begin in range(0, width, STEP):
        at = begin + tl.arange(0, STEP)
        is_in = at < width
        queries = tl.load(
            q_at[:, None] + first + at[None, :], mask=is_row[:, None] & is_in[None, :], other=0.0
        )
        keys = tl.load(
            cache + at[:, None] + k_at[None, :], mask=is_in[:, None] & is_read[None, :], other=0.0
        )
        total = tl.dot(queries, keys, acc=total, input_precision="ieee")
    return total


@triton.jit
def attend_latent(
    q, latent, rotary, out, parts, tables, visible, query_blocks, scale, num_tokens, group,
    latent_dim, rotary_dim, page, table_width, stride_block, stride_latent, stride_rotary,
    stride_q, stride_out, num_chunks, BLOCK_M: tl.constexpr, VALUE: tl.constexpr,
    TILE: tl.constexpr, STEP: tl.constexpr, CHUNK: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """A program computes VALUE numbers of the results of a block of queries. q and the cache have
    the same type."""
    tl.static_assert(CHUNK % TILE == 0)
    entry = query_blocks + FIELDS * tl.program_id(0)
    outs = tl.program_id(1) * VALUE + tl.arange(0, VALUE)
    is_out = outs < latent_dim
    request, begin, first_row = tl.load(entry), tl.load(entry + 1), tl.load(entry + 2)
    num_rows, lowest, highest = tl.load(entry + 3), tl.load(entry + 4), tl.load(entry + 5)
    row = first_row + tl.arange(0, BLOCK_M)
    is_row = row < num_rows
    token, head = begin + row // group, row % group
    q_at = q + token.to(tl.int64) * stride_q + head * (latent_dim + rotary_dim)
    first = tl.load(visible + token, mask=is_row, other=0)
    last = tl.load(visible + num_tokens + token, mask=is_row, other=-1)
    from_chunk, to_chunk = lowest // CHUNK, highest // CHUNK + 1
    if SPLIT:
        from_chunk = tl.maximum(from_chunk, tl.program_id(2))
        to_chunk = tl.minimum(to_chunk, tl.program_id(2) + 1)
    most = tl.full([BLOCK_M], NONE, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    result = tl.zeros([BLOCK_M, VALUE], tl.float32)
    for chunk in range(from_chunk, to_chunk):
        top = tl.full([BLOCK_M], NONE, tl.float32)
        weight = tl.zeros([BLOCK_M], tl.float32)
        mixed = tl.zeros([BLOCK_M, VALUE], tl.float32)
        for tile in range(chunk * CHUNK, tl.minimum((chunk + 1) * CHUNK, highest + 1), TILE):
            at = tile + tl.arange(0, TILE)
            is_read = (at >= lowest) & (at <= highest)
            block = tl.load(tables + request * table_width + at // page, mask=is_read, other=0)
            block_at, place = block.to(tl.int64) * stride_block, (at % page).to(tl.int64)
            v_at = block_at + place * stride_latent
            scores = tl.zeros([BLOCK_M, TILE], tl.float32)
            scores = _scores(scores, q_at, 0, latent_dim, is_row, latent, v_at, is_read, STEP)
            scores = _scores(
                scores, q_at, latent_dim, rotary_dim, is_row, rotary,
                block_at + place * stride_rotary, is_read, STEP,
            )  # fmt: skip
            values = tl.load(
                latent + v_at[:, None] + outs[None, :], mask=is_read[:, None] & is_out[None, :],
                other=0.0,
            )  # fmt: skip
            is_seen = (at[None, :] >= first[:, None]) & (at[None, :] <= last[:, None])
            scores = tl.where(is_seen, scores * scale * LOG2E, NONE)
            new_top = tl.maximum(top, tl.max(scores, 1))
            weights = tl.where(is_seen, tl.exp2(scores - new_top[:, None]), 0.0)
            kept = tl.exp2(top - new_top)
            weight = weight * kept + tl.sum(weights, 1)
            mixed = mixed * kept[:, None]
            mixed = tl.dot(weights.to(values.dtype), values, acc=mixed, input_precision="ieee")
            top = new_top
        if SPLIT:
            line = (token * group + head).to(tl.int64) * num_chunks
            part = parts + (line + chunk) * (latent_dim + 2)
            tl.store(part, top, mask=is_row)
            tl.store(part + 1, weight, mask=is_row)
            part_is = is_row[:, None] & is_out[None, :]
            tl.store(part[:, None] + 2 + outs[None, :], mixed, mask=part_is)
        else:
            new_most = tl.maximum(most, top)
            old, new = tl.exp2(most - new_most), tl.exp2(top - new_most)
            total = total * old + weight * new
            result = result * old[:, None] + mixed * new[:, None]
            most = new_most
    if not SPLIT:
        result = result / total[:, None] + 0.0
        out_at = out + token.to(tl.int64) * stride_out + head * latent_dim
        out_is = is_row[:, None] & is_out[None, :]
        tl.store(out_at[:, None] + outs[None, :], result.to(out.dtype.element_ty), mask=out_is)
