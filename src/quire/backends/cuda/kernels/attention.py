"""Paged attention of prompts and of single tokens.

A block of queries has BLOCK_M rows of one request and one KV head: row r is query head
`r % group` of the KV head, of token `r // group`. Each row sees the positions from `first` to
`last` of its token, which the host has computed from windows, chunks and spans.

Row rule: positions are cut into chunks of CHUNK, which begin at multiples of CHUNK. A chunk is
reduced tile by tile with a softmax of its own, and the chunks are merged in order: by the same
program, or by `merge` from `parts` where the chunks are divided among programs (SPLIT). A chunk
in which a row sees nothing changes no bit of it.
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
def _tanh(x):
    small = x * (1.0 + x * x * (-1.0 / 3.0 + x * x * (2.0 / 15.0)))
    large = 1.0 - 2.0 / (1.0 + tl.exp(2.0 * tl.minimum(tl.maximum(x, -20.0), 20.0)))
    return tl.where(tl.abs(x) < 0.05, small, large)


@triton.jit
def attend(
    q, k_cache, v_cache, k_scales, v_scales, out, parts, tables, visible, query_blocks, slopes,
    sinks, scale, softcap, num_tokens, group, head_dim, value_dim, page, table_width,
    stride_block_k, stride_block_v, stride_k, stride_v, scales_block, scales_slot, stride_q,
    stride_out, num_chunks, value_parts, has_slopes, has_sinks, relative, buckets, reach,
    BLOCK_M: tl.constexpr, HEAD: tl.constexpr, VALUE: tl.constexpr,
    TILE: tl.constexpr, CHUNK: tl.constexpr, SPLIT: tl.constexpr, EXTRAS: tl.constexpr,
    WIDE: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """A program computes VALUE numbers of each result, `value_parts` programs all of them.
    EXTRAS: scores have a soft cap or slopes (1), or numbers for distances too (2). WIDE: products
    are of float32, because q and the cache have different types. SCALED: the cache has integers,
    and a scale for each head."""
    tl.static_assert(CHUNK % TILE == 0)
    entry = query_blocks + FIELDS * tl.program_id(0)
    head, num_heads = tl.program_id(1) // value_parts, tl.num_programs(1) // value_parts * group
    outs = tl.program_id(1) % value_parts * VALUE + tl.arange(0, VALUE)
    is_out = outs < value_dim
    request, begin, first_row = tl.load(entry), tl.load(entry + 1), tl.load(entry + 2)
    num_rows, lowest, highest = tl.load(entry + 3), tl.load(entry + 4), tl.load(entry + 5)
    row = first_row + tl.arange(0, BLOCK_M)
    is_row = row < num_rows
    token, query_head = begin + row // group, head * group + row % group
    dims = tl.arange(0, HEAD)
    q_at = token.to(tl.int64) * stride_q + query_head * head_dim
    q_is = is_row[:, None] & (dims < head_dim)[None, :]
    queries = tl.load(q + q_at[:, None] + dims[None, :], mask=q_is, other=0.0)
    first = tl.load(visible + token, mask=is_row, other=0)
    last = tl.load(visible + num_tokens + token, mask=is_row, other=-1)
    slope = tl.zeros([BLOCK_M], tl.float32)
    position = tl.zeros([BLOCK_M], tl.int32)
    if EXTRAS:
        position = tl.load(visible + 2 * num_tokens + token, mask=is_row, other=0)
        if has_slopes:
            slope = tl.load(slopes + query_head, mask=is_row, other=0.0)
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
            place = (at % page).to(tl.int64)
            k_at = block.to(tl.int64) * stride_block_k + place * stride_k + head * head_dim
            v_at = block.to(tl.int64) * stride_block_v + place * stride_v + head * value_dim
            k_is = (dims < head_dim)[:, None] & is_read[None, :]
            v_is = is_read[:, None] & is_out[None, :]
            keys = tl.load(k_cache + dims[:, None] + k_at[None, :], mask=k_is, other=0.0)
            values = tl.load(v_cache + v_at[:, None] + outs[None, :], mask=v_is, other=0.0)
            if SCALED:
                scale_at = block.to(tl.int64) * scales_block + place * scales_slot + head
                of_keys = tl.load(k_scales + scale_at, mask=is_read, other=0.0)
                of_values = tl.load(v_scales + scale_at, mask=is_read, other=0.0)
                keys = keys.to(tl.float32).to(queries.dtype)
                values = values.to(tl.float32).to(queries.dtype)
            if WIDE:
                wide_q, wide_k = queries.to(tl.float32), keys.to(tl.float32)
                scores = tl.dot(wide_q, wide_k, input_precision="ieee") * scale
            else:
                scores = tl.dot(queries, keys, input_precision="ieee") * scale
            if SCALED:
                scores = scores * of_keys[None, :]
            if EXTRAS:
                if softcap > 0.0:
                    scores = softcap * _tanh(scores / softcap)
                distance = tl.abs(at[None, :] - position[:, None]).to(tl.float32)
                scores = scores - slope[:, None] * distance
                if EXTRAS == 2:
                    apart = tl.minimum(tl.maximum(at[None, :] - position[:, None], -reach), reach)
                    bucket = tl.load(buckets + apart + reach) * num_heads
                    added_at = relative + bucket + query_head[:, None]
                    scores += tl.load(
                        added_at, mask=is_row[:, None] & (at >= 0)[None, :], other=0.0
                    )
            scores = scores * LOG2E
            is_seen = (at[None, :] >= first[:, None]) & (at[None, :] <= last[:, None])
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
            top = new_top
        if SPLIT:
            line = (token * num_heads + query_head).to(tl.int64) * num_chunks
            part = parts + (line + chunk) * (value_dim + 2)
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
        if has_sinks:
            sink = tl.load(sinks + query_head, mask=is_row, other=0.0) * LOG2E
            new_most = tl.maximum(most, sink)
            old = tl.exp2(most - new_most)
            total = total * old + tl.exp2(sink - new_most)
            result = result * old[:, None]
        # Adding 0 makes the sign of a zero the same, however many tiles were added to it.
        result = result / total[:, None] + 0.0
        out_at = token.to(tl.int64) * stride_out + query_head * value_dim
        out_is = is_row[:, None] & is_out[None, :]
        tl.store(
            out + out_at[:, None] + outs[None, :], result.to(out.dtype.element_ty), mask=out_is
        )


@triton.jit
def merge(
    parts, out, visible, sinks, num_tokens, value_dim, stride_out, num_chunks, has_sinks,
    HEAD: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """The chunks of one query head of one token, in order."""
    token, head = tl.program_id(0), tl.program_id(1)
    first, last = tl.load(visible + token), tl.load(visible + num_tokens + token)
    dims = tl.arange(0, HEAD)
    line = (token * tl.num_programs(1) + head).to(tl.int64) * num_chunks
    most = tl.full([], NONE, tl.float32)
    total = tl.full([], 0.0, tl.float32)
    result = tl.zeros([HEAD], tl.float32)
    for chunk in range(first // CHUNK, last // CHUNK + 1):
        part = parts + (line + chunk) * (value_dim + 2)
        top, weight = tl.load(part), tl.load(part + 1)
        mixed = tl.load(part + 2 + dims, mask=dims < value_dim, other=0.0)
        new_most = tl.maximum(most, top)
        old, new = tl.exp2(most - new_most), tl.exp2(top - new_most)
        total = total * old + weight * new
        result = result * old + mixed * new
        most = new_most
    if has_sinks:
        sink = tl.load(sinks + head) * LOG2E
        new_most = tl.maximum(most, sink)
        old = tl.exp2(most - new_most)
        total = total * old + tl.exp2(sink - new_most)
        result = result * old
    result = result / total + 0.0
    target = out + token.to(tl.int64) * stride_out + head * value_dim + dims
    tl.store(target, result.to(out.dtype.element_ty), mask=dims < value_dim)
