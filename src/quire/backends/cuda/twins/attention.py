"""The twins of `kernels/attention.py`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quire.backends.cuda.twins.numbers import Floats, Grid, Numbers, like, rows_of, widened

Integers = NDArray[np.int32]

_NONE = np.float32(-1e30)
_FIELDS = 8


@dataclass(slots=True)
class _Softmax:
    """A part of a softmax for all heads of a token: the largest scores [N], the sums of weights [N]
    and the weighted sums of values [N, D]."""

    top: Floats
    weight: Floats
    mixed: Floats

    @classmethod
    def empty(cls, heads: int, width: int) -> _Softmax:
        """Nothing is seen yet."""
        zeros = np.zeros((heads, width), np.float32)
        return cls(np.full(heads, _NONE), np.zeros(heads, np.float32), zeros)

    def add(self, other: _Softmax) -> None:
        """Merges what comes after it."""
        top = np.maximum(self.top, other.top)
        old, new = np.exp(self.top - top), np.exp(other.top - top)
        self.weight = self.weight * old + other.weight * new
        self.mixed = self.mixed * old[:, None] + other.mixed * new[:, None]
        self.top = top

    def result(self, sinks: Floats | None) -> Floats:
        """[N, D]."""
        if sinks is not None:
            heads, width = self.mixed.shape
            ones = np.ones(heads, np.float32)
            self.add(_Softmax(sinks[:heads], ones, np.zeros((heads, width), np.float32)))
        return self.mixed / self.weight[:, None]


def attend(
    grid: Grid, q: Numbers, k_cache: Numbers, v_cache: Numbers, k_scales: Floats,
    v_scales: Floats, out: Numbers, parts: Floats,
    tables: Integers, visible: Integers, query_blocks: Integers, slopes: Floats, sinks: Floats,
    scale: float, softcap: float, num_tokens: int, group: int, head_dim: int, value_dim: int,
    page: int, table_width: int, stride_block_k: int, stride_block_v: int, stride_k: int,
    stride_v: int, scales_block: int, scales_slot: int, stride_q: int, stride_out: int,
    num_chunks: int, value_parts: int, has_slopes: int, has_sinks: int, relative: Floats,
    buckets: Integers, reach: int, EXTRAS: int, BLOCK_M: int, CHUNK: int, SPLIT: int,
    SCALED: int, FLOATS: int, **_tile: int,
) -> None:  # fmt: skip
    """Token by token, chunk by chunk, in arrays of CHUNK positions."""
    num_blocks, kv_heads = grid[0], grid[1] // value_parts
    heads = kv_heads * group
    first, last = visible[:num_tokens], visible[num_tokens : 2 * num_tokens]
    lines = parts[: num_tokens * heads * num_chunks * (value_dim + 2)] if SPLIT else parts[:0]
    kept = lines.reshape(num_tokens, heads, -1, value_dim + 2) if SPLIT else None
    queries, results = (
        rows_of(flat, num_tokens, stride, heads * width)
        for flat, stride, width in ((q, stride_q, head_dim), (out, stride_out, value_dim))
    )
    for token, request in _tokens(query_blocks, num_blocks, BLOCK_M, group):
        own = widened(queries[token]).reshape(kv_heads, group, head_dim)
        softmax = _Softmax.empty(heads, value_dim)
        for chunk in range(first[token] // CHUNK, last[token] // CHUNK + 1):
            at = np.arange(chunk * CHUNK, (chunk + 1) * CHUNK)
            is_seen = (at >= first[token]) & (at <= last[token])
            block = np.where(is_seen, tables[request * table_width :][at * is_seen // page], 0)
            k_at, v_at = (
                (block * np.int64(stride) + at % page * step) * is_seen
                for stride, step in ((stride_block_k, stride_k), (stride_block_v, stride_v))
            )
            keys = _rows(k_cache, k_at, kv_heads, head_dim, is_seen, FLOATS)
            values = _rows(v_cache, v_at, kv_heads, value_dim, is_seen, FLOATS)
            if SCALED:
                scale_at = block * np.int64(scales_block) + at % page * scales_slot
                keys = keys * _rows(k_scales, scale_at * is_seen, kv_heads, 1, is_seen)
                values = values * _rows(v_scales, scale_at * is_seen, kv_heads, 1, is_seen)
            scores = np.einsum("kgd,ckd->kgc", own, keys).reshape(heads, CHUNK) * scale
            if softcap > 0:
                scores = softcap * np.tanh(scores / softcap)
            if has_slopes:
                position = visible[2 * num_tokens + token]
                scores = scores - slopes[:heads, None] * np.abs(at - position).astype(np.float32)
            if EXTRAS == 2:
                apart = np.clip(at - visible[2 * num_tokens + token], -reach, reach) + reach
                numbers = heads * (int(buckets[: 2 * reach + 1].max()) + 1)
                scores = scores + relative[:numbers].reshape(-1, heads)[buckets[apart]].T
            part = _reduced(np.where(is_seen, scores, _NONE), is_seen, values, group)
            if kept is None:
                softmax.add(part)
                continue
            kept[token, :, chunk, 0], kept[token, :, chunk, 1] = part.top, part.weight
            kept[token, :, chunk, 2:] = part.mixed
        if kept is None:
            result = softmax.result(sinks if has_sinks else None)
            results[token] = like(result.reshape(-1), out)


def merge(
    grid: Grid, parts: Floats, out: Numbers, visible: Integers, sinks: Floats, num_tokens: int,
    value_dim: int, stride_out: int, num_chunks: int, has_sinks: int, HEAD: int, CHUNK: int,
) -> None:  # fmt: skip
    """Token by token."""
    del HEAD
    _, heads = grid
    lines = parts[: num_tokens * heads * num_chunks * (value_dim + 2)]
    kept = lines.reshape(num_tokens, heads, num_chunks, value_dim + 2)
    results = rows_of(out, num_tokens, stride_out, heads * value_dim)
    for token in range(num_tokens):
        softmax = _Softmax.empty(heads, value_dim)
        first, last = visible[token], visible[num_tokens + token]
        for chunk in range(first // CHUNK, last // CHUNK + 1):
            part = kept[token, :, chunk]
            softmax.add(_Softmax(part[:, 0], part[:, 1], part[:, 2:]))
        results[token] = like(softmax.result(sinks if has_sinks else None).reshape(-1), out)


def _tokens(
    query_blocks: Integers, num_blocks: int, height: int, group: int
) -> list[tuple[int, int]]:
    """The tokens of the blocks, each once, with their requests."""
    found: dict[int, int] = {}
    for fields in query_blocks[: num_blocks * _FIELDS].reshape(num_blocks, _FIELDS).tolist():
        request, begin, first_row, num_rows = fields[:4]
        if request < 0:
            continue
        end = min(first_row + height, num_rows)
        found.update((begin + row // group, request) for row in range(first_row, end))
    return list(found.items())


def _rows(
    cache: Numbers, at: NDArray[np.int64], heads: int, width: int, is_seen: NDArray[np.bool_],
    floats: int = 0,
) -> Floats:  # fmt: skip
    """[positions, heads, width]; zeros where nothing is seen. `floats`: of 8 bits."""
    rows = widened(cache[at[:, None] + np.arange(heads * width)], floats)
    zeroed: Floats = np.where(is_seen[:, None], rows, np.float32(0))
    return zeroed.reshape(len(at), heads, width)


def _reduced(scores: Floats, is_seen: NDArray[np.bool_], values: Floats, group: int) -> _Softmax:
    """The softmax of scores [N, C] over values [C, K, D]."""
    top = scores.max(axis=1)
    weights = np.where(is_seen, np.exp(scores - top[:, None]), np.float32(0))
    by_head = weights.reshape(-1, group, weights.shape[1])
    mixed = np.einsum("kgc,ckd->kgd", by_head, values)
    return _Softmax(top, weights.sum(axis=1), mixed.reshape(len(top), -1))
