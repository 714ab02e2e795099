"""Attention over the paged KV cache or over the step alone, one token at a time: the specification.

A token's result is computed from its own query and the keys that it sees, in arrays whose sizes
follow from its position alone (without a cache: from the length of its request), so no chunking and
no neighbour can change a bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quire.backends.base import StepBatch, TokenRows
from quire.backends.paged_kv_cache import PagedKVCache
from quire.backends.reference.ops.frame import Floats, Frame, run
from quire.errors import BackendError
from quire.program import Attention, JoinHeads, KeepSources, Rope, SourcesEnd


@dataclass(frozen=True, slots=True)
class Extras:
    """The numbers of an attention op's weights, where it has any."""

    sinks: Floats | None
    biases: Floats | None
    """The numbers of `Attention.relative`."""


def with_given(
    given: Sequence[TokenRows], layer: int, k: Floats, v: Floats
) -> tuple[Floats, Floats]:
    """Copies of a layer's k and v [T, K * H] in which given rows replace those computed."""
    k, v = k.copy(), v.copy()
    width = k.shape[1]
    for one in given:
        tokens, begin = slice(one.first, one.first + len(one.rows)), 2 * layer * width
        k[tokens] = one.rows[:, begin : begin + width]
        v[tokens] = one.rows[:, begin + width : begin + 2 * width]
    return k, v


def attend(
    op: Attention,
    qkv: tuple[Floats, Floats | None, Floats | None],
    extras: Extras,
    batch: StepBatch,
    cache: PagedKVCache,
) -> Floats:
    """Writes k and v, if there are any, into the cache, then gives every q its answer:
    [T, N * value_dim]. Raises BackendError where nothing is kept and the step has only a part of a
    request."""
    q, k, v = qkv
    out = np.empty((len(q), op.num_heads * (op.value_dim or op.head_dim)), np.float32)
    for request, length in enumerate(batch.context_lens):
        begin, end = batch.seq_starts[request : request + 2]
        if begin == end:
            continue
        positions = batch.positions[begin:end]
        own = (None, None) if k is None else (k[begin:end], (k if v is None else v)[begin:end])
        if op.layer is None:
            origin, (keys, values) = 0, own
        else:
            tables = batch.block_tables[request]
            origin, keys, values = _kept(op, op.layer, own, positions, tables, cache)
        if keys is None or values is None or origin + len(keys) != length:
            raise BackendError("attention without a cache needs all tokens of a request in a step")
        by_head = (len(keys), op.num_kv_heads, -1)
        keys, values = keys.reshape(by_head), values.reshape(by_head)
        if op.is_latent:
            values = np.ascontiguousarray(values[:, :, : op.value_dim])
        for token, position in enumerate(positions.tolist(), start=begin):
            first, last = _first_visible(op, position), _last_visible(op, position, int(length))
            if op.spans and batch.spans is not None:
                span_first, span_last = batch.spans[:, token].tolist()
                if not op.is_causal:
                    first, last = span_first, span_last
                else:
                    first, last = min(first, span_first), max(last, span_last)
            elif op.spans and not op.is_causal:
                first = last = position
            seen = slice(first - origin, last + 1 - origin)
            distances = np.arange(first, last + 1) - position
            out[token] = _attend_one(op, q[token], extras, keys[seen], values[seen], distances)
    return out


def _kept(
    op: Attention,
    layer: int,
    own: tuple[Floats | None, Floats | None],
    positions: NDArray[np.int32],
    tables: NDArray[np.int32],
    cache: PagedKVCache,
) -> tuple[int, Floats, Floats]:
    """Writes a request's own k and v. The first position that is read, and all keys and values from
    there on."""
    block_size, length = cache.spec.block_size, int(positions[-1]) + 1
    table = tables[cache.places[layer].group]
    k, v = own
    if k is not None and v is not None:
        cache.write(layer, table[positions // block_size], positions % block_size, k, v)
    # What lies before the window of the first token may be another request's by now.
    first_entry = _first_visible(op, int(positions[0])) // block_size
    seen = table[first_entry : -(-length // block_size)]
    origin = first_entry * block_size
    return origin, *cache.gather(layer, seen, length - origin)


def _first_visible(op: Attention, position: int) -> int:
    if op.window is None:
        return op.first_key
    if op.is_chunked:
        return position // op.window * op.window
    return max(0, position - op.window + 1)


def _last_visible(op: Attention, position: int, length: int) -> int:
    if op.num_keys:
        return min(position, op.num_keys - 1)
    if op.is_causal:
        return position
    return min(length, length if op.window is None else position + op.window) - 1


def _attend_one(
    op: Attention,
    q: Floats,
    extras: Extras,
    keys: Floats,
    values: Floats,
    distances: NDArray[np.int64],
) -> Floats:
    """One query [N * H] over C keys and values [C, K, H] at `distances` [C] from it: [N * H]."""
    # Heads that share a kv head are neighbours: [K, N / K, 1, H]. Each is multiplied alone and with
    # K and V in one piece, because BLAS picks its kernels by the number of rows and by their
    # distance in memory, and ranks may share the heads of a kv head.
    grouped = q.reshape(op.num_kv_heads, -1, 1, op.head_dim).copy()
    keys, values = (part.transpose(1, 0, 2).copy()[:, None] for part in (keys, values))
    scores = (grouped @ keys.transpose(0, 1, 3, 2))[:, :, 0] * np.float32(op.scale)
    if op.softcap is not None:
        cap = np.float32(op.softcap)
        scores = cap * np.tanh(scores / cap)
    if op.alibi_slopes is not None:
        slopes = np.array(op.alibi_slopes, np.float32).reshape(op.num_kv_heads, -1, 1)
        scores = scores - slopes * np.abs(distances).astype(np.float32)
    if extras.biases is not None:
        reach = len(op.buckets) // 2
        chosen = np.array(op.buckets)[np.clip(distances, -reach, reach) + reach]
        biases = extras.biases.reshape(-1, op.num_heads)[chosen].T
        scores = scores + biases.reshape(op.num_kv_heads, -1, len(distances))
    largest = scores.max(axis=-1, keepdims=True)
    by_head = (op.num_kv_heads, -1, 1)
    sinks = extras.sinks
    if sinks is not None:
        largest = np.maximum(largest, sinks.reshape(by_head))
    weights = np.exp(scores - largest)
    total = weights.sum(axis=-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sinks.reshape(by_head) - largest)
    weights /= total
    result: Floats = (weights[:, :, None] @ values).reshape(-1)
    return result


@run.register
def _(op: Attention, frame: Frame) -> None:
    k, v = (None if value is None else frame.values[value] for value in (op.k, op.v))
    if frame.batch.given_kv and op.layer is not None and k is not None and v is not None:
        k, v = with_given(frame.batch.given_kv, op.layer, k, v)
    sinks = None if op.sinks is None else frame.array(op.sinks)
    biases = None if op.relative is None else frame.array(op.relative)
    extras = Extras(sinks, biases)
    frame.values[op.out] = attend(op, (frame.values[op.q], k, v), extras, frame.batch, frame.cache)


@run.register
def _(op: KeepSources, frame: Frame) -> None:
    batch, cache = frame.batch, frame.cache
    group, size = cache.places[op.layer].group, cache.spec.block_size
    k, v = frame.values[op.k], frame.values[op.v]
    for request in range(len(batch.context_lens)):
        own = slice(*batch.seq_starts[request : request + 2])
        positions, table = batch.positions[own], batch.block_tables[request, group]
        cache.write(op.layer, table[positions // size], positions % size, k[own], v[own])


@run.register
def _(op: SourcesEnd, frame: Frame) -> None:
    """The caller runs the ops before it for other rows than those after it."""


@run.register
def _(op: Rope, frame: Frame) -> None:
    """The angle is a float32 product, as in the models' own code; cos and sin are exact."""
    x = frame.values[op.x]
    heads = x.reshape(len(x), op.num_heads, op.head_dim).copy()
    half = len(op.inv_freq)
    positions, axes = frame.batch.positions[:, None], np.zeros(half, np.intp)
    if op.axes and frame.batch.axis_positions is not None:
        positions, axes = frame.batch.axis_positions, np.array(op.axes, np.intp)
    turning = positions.astype(np.float32)[:, axes]
    angles = (turning * np.array(op.inv_freq, np.float32)).astype(np.float64)
    cos = (np.cos(angles) * op.scale).astype(np.float32)[:, None, :]
    sin = (np.sin(angles) * op.scale).astype(np.float32)[:, None, :]
    if op.interleaved:
        first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    else:
        first, second = slice(0, half), slice(half, 2 * half)
    a, b = heads[..., first].copy(), heads[..., second].copy()
    heads[..., first] = a * cos - b * sin
    heads[..., second] = b * cos + a * sin
    frame.values[op.out] = heads.reshape(x.shape)


@run.register
def _(op: JoinHeads, frame: Frame) -> None:
    a, b = (frame.values[x].reshape(-1, op.num_heads, x.dim // op.num_heads) for x in (op.a, op.b))
    frame.values[op.out] = np.concatenate([a, b], axis=2).reshape(len(a), op.out.dim)
