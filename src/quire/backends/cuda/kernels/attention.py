"""Paged attention of prompts and of single tokens. See `softmax.py`.

Row rule: positions are cut into chunks of CHUNK, which begin at multiples of CHUNK. A chunk is
reduced tile by tile with a softmax of its own, and the chunks are merged in order: by the same
program, or by `merge` from `parts` where the chunks are divided among programs (SPLIT). A chunk
in which a row sees nothing changes no bit of it.
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
def _tanh(x):
    small = x * (1.0 + x * x * (-1.0 / 3.0 + x * x * (2.0 / 15.0)))
    large = 1.0 - 2.0 / (1.0 + tl.exp(2.0 * tl.minimum(tl.maximum(x, -20.0), 20.0)))
    return tl.where(tl.abs(x) < 0.05, small, large)


@triton.jit
def _products(queries, keys, WIDE: tl.constexpr):
    if WIDE:
        queries, keys = queries.to(tl.float32), keys.to(tl.float32)
    return tl.dot(queries, keys, input_precision="ieee")


@triton.jit
def _changed(
    scores, at, position, query_head, is_row, softcap, slopes, has_slopes, relative, buckets,
    reach, num_heads, EXTRAS: tl.constexpr,
):  # fmt: skip
    """Scores with a soft cap and what follows from distances."""
    if softcap > 0.0:
        scores = softcap * _tanh(scores / softcap)
    if has_slopes:
        slope = tl.load(slopes + query_head, mask=is_row, other=0.0)
        distance = tl.abs(at[None, :] - position[:, None]).to(tl.float32)
        scores = scores - slope[:, None] * distance
    if EXTRAS == 2:
        apart = tl.minimum(tl.maximum(at[None, :] - position[:, None], -reach), reach)
        added = relative + tl.load(buckets + apart + reach) * num_heads + query_head[:, None]
        scores += tl.load(added, mask=is_row[:, None] & (at >= 0)[None, :], other=0.0)
    return scores


@triton.jit
def attend(
    q, k_cache, v_cache, k_scales, v_scales, out, parts, tables, visible, query_blocks, slopes,
    sinks, scale, softcap, num_tokens, group, head_dim, value_dim, page, table_width,
    stride_block_k, stride_block_v, stride_k, stride_v, scales_block, scales_slot, stride_q,
    stride_out, num_chunks, value_parts, has_slopes, has_sinks, relative, buckets, reach,
    BLOCK_M: tl.constexpr, HEAD: tl.constexpr, VALUE: tl.constexpr,
    TILE: tl.constexpr, CHUNK: tl.constexpr, SPLIT: tl.constexpr, EXTRAS: tl.constexpr,
    WIDE: tl.constexpr, SCALED: tl.constexpr, FLOATS: tl.constexpr,
    HOIST: tl.constexpr,
):  # fmt: skip
    """A program computes VALUE numbers of each result, `value_parts` programs all of them.
    EXTRAS: scores have a soft cap or slopes (1), or numbers for distances too (2). WIDE: products
    are of float32, because q and the cache have different types. SCALED: the cache has whole
    numbers of 8 bits, or floats of 8 bits (FLOATS), and a scale for each head. HOIST: values that
    are the same in each pass of the inner loop are computed before it, and take registers."""
    tl.static_assert(CHUNK % TILE == 0)
    entry = query_blocks + FIELDS * tl.program_id(0)
    head, num_heads = tl.program_id(1) // value_parts, tl.num_programs(1) // value_parts * group
    outs = tl.program_id(1) % value_parts * VALUE + tl.arange(0, VALUE)
    token, in_group, is_row, first, last = rows_of_block(entry, visible, num_tokens, group, BLOCK_M)
    query_head = head * group + in_group
    dims = tl.arange(0, HEAD)
    q_at = token.to(tl.int64) * stride_q + query_head * head_dim
    q_is = is_row[:, None] & (dims < head_dim)[None, :]
    queries = tl.load(q + q_at[:, None] + dims[None, :], mask=q_is, other=0.0)
    position = first
    if EXTRAS:
        position = tl.load(visible + 2 * num_tokens + token, mask=is_row, other=0)
    table = tables + tl.load(entry) * table_width
    lowest, highest = tl.load(entry + 4), tl.load(entry + 5)
    begin, end = chunks_of_block(entry, CHUNK, SPLIT)
    most, total, result = empty_part(BLOCK_M, VALUE)
    for chunk in range(begin, end):
        top, weight, mixed = empty_part(BLOCK_M, VALUE)
        tiles_end = tl.minimum((chunk + 1) * CHUNK, highest + 1)
        for tile in tl.range(chunk * CHUNK, tiles_end, TILE, disable_licm=not HOIST):
            at, is_read, block, place = places_of_tile(table, tile, lowest, highest, page, TILE)
            k_at = block * stride_block_k + place * stride_k + head * head_dim
            v_at = block * stride_block_v + place * stride_v + head * value_dim
            k_is = (dims < head_dim)[:, None] & is_read[None, :]
            v_is = is_read[:, None] & (outs < value_dim)[None, :]
            keys = tl.load(k_cache + dims[:, None] + k_at[None, :], mask=k_is, other=0.0)
            values = tl.load(v_cache + v_at[:, None] + outs[None, :], mask=v_is, other=0.0)
            of_values = 1.0
            if SCALED:
                keys = held_numbers(keys, queries.dtype, FLOATS)
                values = held_numbers(values, queries.dtype, FLOATS)
                scale_at = block * scales_block + place * scales_slot + head
                of_values = tl.load(v_scales + scale_at, mask=is_read, other=0.0)
            scores = _products(queries, keys, WIDE) * scale
            if SCALED:
                scores = scores * tl.load(k_scales + scale_at, mask=is_read, other=0.0)[None, :]
            if EXTRAS:
                scores = _changed(
                    scores, at, position, query_head, is_row, softcap, slopes, has_slopes,
                    relative, buckets, reach, num_heads, EXTRAS,
                )  # fmt: skip
            is_seen = (at[None, :] >= first[:, None]) & (at[None, :] <= last[:, None])
            top, weight, mixed = with_tile(
                top, weight, mixed, scores * LOG2E, is_seen, values, of_values, SCALED, WIDE
            )
        if SPLIT:
            line = (token * num_heads + query_head).to(tl.int64) * num_chunks + chunk
            store_part(parts, line, value_dim, outs, is_row, top, weight, mixed)
        else:
            most, total, result = merged(most, total, result, top, weight, mixed)
    if not SPLIT:
        mean = mean_of(most, total, result, sinks, query_head, is_row, has_sinks)
        out_at = token.to(tl.int64) * stride_out + query_head * value_dim
        store_rows(out, out_at, value_dim, outs, is_row, mean)


@triton.jit
def merge(
    parts, out, visible, sinks, num_tokens, value_dim, stride_out, num_chunks, has_sinks,
    HEAD: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """The chunks of one query head of one token, in order."""
    token, head = tl.program_id(0), tl.program_id(1) + tl.zeros([1], tl.int32)
    first, last = tl.load(visible + token), tl.load(visible + num_tokens + token)
    dims, is_row = tl.arange(0, HEAD), head >= 0
    line = (token * tl.num_programs(1) + head).to(tl.int64) * num_chunks
    most, total, result = empty_part(1, HEAD)
    for chunk in range(first // CHUNK, last // CHUNK + 1):
        part = parts + (line + chunk) * (value_dim + 2)
        top, weight = tl.load(part), tl.load(part + 1)
        mixed_at = part[:, None] + 2 + dims[None, :]
        mixed = tl.load(mixed_at, mask=(dims < value_dim)[None, :], other=0.0)
        most, total, result = merged(most, total, result, top, weight, mixed)
    mean = mean_of(most, total, result, sinks, head, is_row, has_sinks)
    out_at = token.to(tl.int64) * stride_out + head * value_dim
    store_rows(out, out_at, value_dim, dims, is_row, mean)
