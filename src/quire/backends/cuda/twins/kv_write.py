"""The twin of `kernels/kv_write.py`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quire.backends.cuda.twins.numbers import Floats, Grid, Numbers, like, rows_of, widened
from quire.backends.kv_formats import Float8KV, Int8KV


def write(
    grid: Grid, k: Numbers, v: Numbers, slots: NDArray[np.int32], k_cache: Numbers,
    v_cache: Numbers, k_scales: Floats, v_scales: Floats, page: int,
    head_dim: int, value_dim: int, stride_k: int, stride_v: int,
    stride_block_k: int, stride_block_v: int, stride_slot_k: int, stride_slot_v: int,
    scales_block: int, scales_slot: int, HEAD: int, SCALED: int, FLOATS: int,
) -> None:  # fmt: skip
    """Token by token."""
    del HEAD
    form = Float8KV() if FLOATS else Int8KV()
    tokens, heads = grid
    all_k = widened(rows_of(k, tokens, stride_k, heads * head_dim)).reshape(tokens, heads, -1)
    all_v = widened(rows_of(v, tokens, stride_v, heads * value_dim)).reshape(tokens, heads, -1)
    both = np.concatenate([all_k, all_v], axis=2)
    is_good = np.isfinite(both).all(axis=2, keepdims=True)
    all_k = np.where(is_good, all_k, np.float32(np.nan))
    all_v = np.where(is_good, all_v, np.float32(0))
    for slot, keys, values in zip(slots[:tokens].tolist(), all_k, all_v, strict=True):
        if slot < 0:
            continue
        block, place = divmod(slot, page)
        if SCALED:
            at = block * scales_block + place * scales_slot
            keys, k_scales[at : at + heads] = form.encode(keys)
            values, v_scales[at : at + heads] = form.encode(values)
        at = block * stride_block_k + place * stride_slot_k
        k_cache[at : at + keys.size] = like(keys.reshape(-1), k_cache)
        at = block * stride_block_v + place * stride_slot_v
        v_cache[at : at + values.size] = like(values.reshape(-1), v_cache)
