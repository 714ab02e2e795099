"""Causal attention over the paged KV cache, one token at a time: the specification.

A token's result is computed from its own query and the keys up to its position in arrays whose
sizes its position alone decides, so no chunking and no neighbour can change a bit.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quire.backends.base import StepBatch
from quire.backends.paged.kv_cache import PagedKVCache
from quire.program import Attention

Floats = NDArray[np.float32]


def attend(
    op: Attention,
    qkv: tuple[Floats, Floats | None, Floats | None],
    sinks: Floats | None,
    batch: StepBatch,
    cache: PagedKVCache,
) -> Floats:
    """Writes k and v [T, K * H], if there are any, into the cache, then gives every q its answer:
    [T, N * H]."""
    q, k, v = qkv
    block_size, group = cache.spec.block_size, cache.places[op.layer].group
    out = np.empty_like(q)
    for request, length in enumerate(batch.context_lens):
        begin, end = batch.seq_starts[request : request + 2]
        if begin == end:
            continue
        table = batch.block_tables[request, group]
        positions = batch.positions[begin:end]
        blocks, places = table[positions // block_size], positions % block_size
        if k is not None and v is not None:
            cache.write(op.layer, blocks, places, k[begin:end], v[begin:end])
        # What lies before the window of the first token may be another request's by now.
        first_entry = _first_visible(op, int(positions[0])) // block_size
        seen = table[first_entry : -(-int(length) // block_size)]
        origin = first_entry * block_size
        keys, values = cache.gather(op.layer, seen, int(length) - origin)
        by_head = (-1, op.num_kv_heads, op.head_dim)
        keys, values = keys.reshape(by_head), values.reshape(by_head)
        for token, position in enumerate(positions.tolist(), start=begin):
            visible = slice(_first_visible(op, position) - origin, position + 1 - origin)
            out[token] = _attend_one(op, q[token], sinks, keys[visible], values[visible])
    return out


def _first_visible(op: Attention, position: int) -> int:
    if op.window is None:
        return 0
    if op.is_chunked:
        return position // op.window * op.window
    return max(0, position - op.window + 1)


def _attend_one(
    op: Attention, q: Floats, sinks: Floats | None, keys: Floats, values: Floats
) -> Floats:
    """One query [N * H] over C keys and values [C, K, H]: [N * H]."""
    # Heads that share a kv head are neighbours: [K, N / K, H].
    grouped = q.reshape(op.num_kv_heads, -1, op.head_dim).copy()
    scores = grouped @ keys.transpose(1, 2, 0) * np.float32(op.scale)
    if op.softcap is not None:
        cap = np.float32(op.softcap)
        scores = cap * np.tanh(scores / cap)
    if op.alibi_slopes is not None:
        slopes = np.array(op.alibi_slopes, np.float32).reshape(op.num_kv_heads, -1, 1)
        scores = scores + slopes * np.arange(1 - len(keys), 1, dtype=np.float32)
    largest = scores.max(axis=-1, keepdims=True)
    by_head = (op.num_kv_heads, -1, 1)
    if sinks is not None:
        largest = np.maximum(largest, sinks.reshape(by_head))
    weights = np.exp(scores - largest)
    total = weights.sum(axis=-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sinks.reshape(by_head) - largest)
    weights /= total
    result: Floats = (weights @ values.transpose(1, 0, 2)).reshape(-1)
    return result
