"""The twin of `kernels/kv_write.py`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quire.backends.cuda.twins.numbers import Grid, Numbers, like, rows_of, widened


def write(
    grid: Grid, k: Numbers, v: Numbers, slots: NDArray[np.int32], k_cache: Numbers,
    v_cache: Numbers, page: int, head_dim: int, value_dim: int, stride_k: int, stride_v: int,
    stride_block_k: int, stride_block_v: int, stride_slot_k: int, stride_slot_v: int, HEAD: int,
) -> None:  # fmt: skip
    """Token by token."""
    del HEAD
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
        at = block * stride_block_k + place * stride_slot_k
        k_cache[at : at + keys.size] = like(keys.reshape(-1), k_cache)
        at = block * stride_block_v + place * stride_slot_v
        v_cache[at : at + values.size] = like(values.reshape(-1), v_cache)
