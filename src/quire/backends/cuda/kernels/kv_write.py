"""Writes K and V of tokens to their places in the KV cache.

A token whose K or V is not finite is stored as K of NaN and V of 0 (of this head). So its scores
are NaN where it is seen, and the zeros that other rows multiply with its V stay zeros.
"""

import triton
import triton.language as tl


@triton.jit
def write(
    k, v, slots, k_cache, v_cache, page, head_dim, value_dim, stride_k, stride_v, stride_block_k,
    stride_block_v, stride_slot_k, stride_slot_v, HEAD: tl.constexpr,
):  # fmt: skip
    """One program writes one head of one token. A slot below 0 is not written."""
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.load(slots + token)
    if slot >= 0:
        block, place = (slot // page).to(tl.int64), (slot % page).to(tl.int64)
        dims = tl.arange(0, HEAD)
        is_k, is_v = dims < head_dim, dims < value_dim
        keys = tl.load(k + token * stride_k + head * head_dim + dims, mask=is_k, other=0.0)
        values = tl.load(v + token * stride_v + head * value_dim + dims, mask=is_v, other=0.0)
        keys, values = keys.to(tl.float32), values.to(tl.float32)
        # The difference of an infinity or a NaN with itself is not 0.
        bad = tl.max(((keys - keys != 0.0) | (values - values != 0.0)).to(tl.int32), 0)
        keys = tl.where(bad != 0, float("nan"), keys)
        values = tl.where(bad != 0, 0.0, values)
        k_at = block * stride_block_k + place * stride_slot_k + head * head_dim + dims
        v_at = block * stride_block_v + place * stride_slot_v + head * value_dim + dims
        tl.store(k_cache + k_at, keys.to(k_cache.dtype.element_ty), mask=is_k)
        tl.store(v_cache + v_at, values.to(v_cache.dtype.element_ty), mask=is_v)
