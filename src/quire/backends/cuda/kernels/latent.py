"""Paged attention of heads that share one row of K, of which V is the first part.

The cache has two arrays for a layer: the latent part, which is V too, and the rotary part of K. A
block of queries has all heads as one group. The row rule is that of `attention.py`.
"""

import triton
import triton.language as tl

from quire.backends.cuda.kernels.rounding import held_numbers
from quire.backends.cuda.kernels.softmax import (
    FIELDS,
    LOG2E,
    chunks_of_block,
    empty_part,
    mean_of,
    merged,
    places_of_tile,
    rows_of_block,
    store_part,
    store_rows,
    with_tile,
)


@triton.jit
def _scores(
    q_at, first, width, is_row, cache, k_at, is_read, BLOCK_M: tl.constexpr, TILE: tl.constexpr,
    STEP: tl.constexpr, FLOATS: tl.constexpr,
):  # fmt: skip
    """The products of queries and keys over `width` numbers, which are those of q from `first`
    on."""
    total = tl.zeros([BLOCK_M, TILE], tl.float32)
    return _with_products(total, q_at, first, width, is_row, cache, k_at, is_read, STEP, FLOATS)


@triton.jit
def _with_products(
    total, q_at, first, width, is_row, cache, k_at, is_read, STEP: tl.constexpr,
    FLOATS: tl.constexpr,
):  # fmt: skip
    for begin in range(0, width, STEP):
        at = begin + tl.arange(0, STEP)
        is_in = at < width
        queries = tl.load(
            q_at[:, None] + first + at[None, :], mask=is_row[:, None] & is_in[None, :], other=0.0
        )
        keys = tl.load(
            cache + at[:, None] + k_at[None, :], mask=is_in[:, None] & is_read[None, :], other=0
        )
        if keys.dtype != queries.dtype:
            keys = held_numbers(keys, queries.dtype, FLOATS)
        total = tl.dot(queries, keys, acc=total, input_precision="ieee")
    return total


@triton.jit
def attend_latent(
    q, latent, rotary, latent_scales, rotary_scales, out, parts, tables, visible, query_blocks,
    scale, num_tokens, group, latent_dim, rotary_dim, page, table_width, stride_block,
    stride_latent, stride_rotary, scales_block, stride_q, stride_out, num_chunks,
    BLOCK_M: tl.constexpr, VALUE: tl.constexpr, TILE: tl.constexpr, STEP: tl.constexpr,
    CHUNK: tl.constexpr, SPLIT: tl.constexpr, SCALED: tl.constexpr, FLOATS: tl.constexpr,
):  # fmt: skip
    """A program computes VALUE numbers of the results of a block of queries. q and the cache have
    the same type; or the cache has whole numbers of 8 bits, or floats of 8 bits (FLOATS), with a
    scale for each part of a row (SCALED)."""
    tl.static_assert(CHUNK % TILE == 0)
    entry = query_blocks + FIELDS * tl.program_id(0)
    outs = tl.program_id(1) * VALUE + tl.arange(0, VALUE)
    token, head, is_row, first, last = rows_of_block(entry, visible, num_tokens, group, BLOCK_M)
    q_at = q + token.to(tl.int64) * stride_q + head * (latent_dim + rotary_dim)
    table = tables + tl.load(entry) * table_width
    lowest, highest = tl.load(entry + 4), tl.load(entry + 5)
    begin, end = chunks_of_block(entry, CHUNK, SPLIT)
    most, total, result = empty_part(BLOCK_M, VALUE)
    for chunk in range(begin, end):
        top, weight, mixed = empty_part(BLOCK_M, VALUE)
        for tile in range(chunk * CHUNK, tl.minimum((chunk + 1) * CHUNK, highest + 1), TILE):
            at, is_read, block, place = places_of_tile(table, tile, lowest, highest, page, TILE)
            v_at = block * stride_block + place * stride_latent
            k_at = block * stride_block + place * stride_rotary
            scores = _scores(
                q_at, 0, latent_dim, is_row, latent, v_at, is_read, BLOCK_M, TILE, STEP, FLOATS
            )
            v_is = is_read[:, None] & (outs < latent_dim)[None, :]
            values = tl.load(latent + v_at[:, None] + outs[None, :], mask=v_is, other=0)
            of_values = 1.0
            if SCALED:
                values = held_numbers(values, q.dtype.element_ty, FLOATS)
                scale_at = block * scales_block + place
                of_values = tl.load(latent_scales + scale_at, mask=is_read, other=0.0)
                of_keys = tl.load(rotary_scales + scale_at, mask=is_read, other=0.0)
                turned = _scores(
                    q_at, latent_dim, rotary_dim, is_row, rotary, k_at, is_read, BLOCK_M, TILE,
                    STEP, FLOATS,
                )  # fmt: skip
                scores = scores * of_values[None, :] + turned * of_keys[None, :]
            else:
                scores = _with_products(
                    scores, q_at, latent_dim, rotary_dim, is_row, rotary, k_at, is_read, STEP,
                    FLOATS,
                )  # fmt: skip
            is_seen = (at[None, :] >= first[:, None]) & (at[None, :] <= last[:, None])
            top, weight, mixed = with_tile(
                top, weight, mixed, scores * scale * LOG2E, is_seen, values, of_values, SCALED, 0
            )
        if SPLIT:
            line = (token * group + head).to(tl.int64) * num_chunks + chunk
            store_part(parts, line, latent_dim, outs, is_row, top, weight, mixed)
        else:
            most, total, result = merged(most, total, result, top, weight, mixed)
    if not SPLIT:
        mean = mean_of(most, total, result, parts, head, is_row, 0)
        out_at = token.to(tl.int64) * stride_out + head * latent_dim
        store_rows(out, out_at, latent_dim, outs, is_row, mean)
