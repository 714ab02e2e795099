"""Writes K and V of tokens to their places in the KV cache.

A token whose K or V is not finite is stored as K of NaN and V of 0 (of this head). So its scores
are NaN where it is seen, and the zeros that other rows multiply with its V stay zeros.

SCALED: the cache has whole numbers of 8 bits, or floats of 8 bits (FLOATS), with a scale for each
head of a token; the scale of K is NaN then.
"""

import triton
import triton.language as tl

from quire.backends.cuda.kernels.rounding import to_float8


@triton.jit
def _rounded(numbers, FLOATS: tl.constexpr):
    """Codes of the numbers, of which the largest becomes 127 or the float 448, to nearest with ties
    to even, and their scale."""
    limit = 448.0 if FLOATS else 127.0
    largest = tl.max(tl.abs(numbers), 0)
    is_large = largest >= 1e-30
    inverse = tl.div_rn(limit, tl.where(is_large, largest, 1.0))
    if FLOATS:
        codes = to_float8(numbers * inverse)
    else:
        # Adding this number rounds to whole numbers.
        codes = ((numbers * inverse + 12582912.0) - 12582912.0).to(tl.int32)
    return tl.where(is_large, codes, 0), tl.div_rn(largest, limit)


@triton.jit
def write(
    k, v, slots, k_cache, v_cache, k_scales, v_scales, page, head_dim, value_dim, stride_k,
    stride_v, stride_block_k, stride_block_v, stride_slot_k, stride_slot_v, scales_block,
    scales_slot, HEAD: tl.constexpr, SCALED: tl.constexpr, FLOATS: tl.constexpr,
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
        values = tl.where(bad != 0, 0.0, values)
        if SCALED:
            scale_at = block * scales_block + place * scales_slot + head
            keys = tl.where(bad != 0, 0.0, keys)
            keys, key_scale = _rounded(keys, FLOATS)
            values, value_scale = _rounded(values, FLOATS)
            tl.store(k_scales + scale_at, tl.where(bad != 0, float("nan"), key_scale))
            tl.store(v_scales + scale_at, value_scale)
        else:
            keys = tl.where(bad != 0, float("nan"), keys)
        k_at = block * stride_block_k + place * stride_slot_k + head * head_dim + dims
        v_at = block * stride_block_v + place * stride_slot_v + head * value_dim + dims
        tl.store(k_cache + k_at, keys.to(k_cache.dtype.element_ty), mask=is_k)
        tl.store(v_cache + v_at, values.to(v_cache.dtype.element_ty), mask=is_v)
