"""From the tensors of quantised checkpoints to float32: each function is a formula.

Sources: transformers `integrations/finegrained_fp8.py`; bitsandbytes `functional.py`
(`dequantize_4bit`, `dequantize_blockwise`); GPTQModel `nn_modules/qlinear/torch.py`;
compressed-tensors `quantization/lifecycle/forward.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quire.errors import CheckpointError
from quire.weights.quantised.float_tables import E4M3
from quire.weights.quantised.groups import Bytes, Floats
from quire.weights.quantised.unpack import Words, nibbles


def fp8(codes: Bytes, scales: Floats, block: tuple[int, int] | None) -> Floats:
    """codes [N, K] times a scale of all, of each row [N] or [N, 1], or of each block.

    Raises ValueError where the scales are not as many.
    """
    values = E4M3[codes]
    if scales.size == 1:
        return values * scales.reshape(())
    rows, columns = codes.shape
    if block is None:
        return values * scales.reshape(rows, 1)
    high, wide = -(-rows // block[0]), -(-columns // block[1])
    of_blocks = scales.reshape(high, wide)
    spread = np.repeat(of_blocks, block[1], axis=1)[:, :columns]
    for index in range(high):  # row by row of blocks: the scales of all weights would take as much
        values[index * block[0] : (index + 1) * block[0]] *= spread[index]
    return values


@dataclass(frozen=True, slots=True)
class NestedScales:
    """The scales of bitsandbytes' "double quantisation": bytes, which have scales of their own."""

    table: Floats
    """[256]"""
    scales: Floats
    block: int
    offset: float

    def expand(self, codes: Bytes) -> Floats:
        """The scales that the bytes stand for."""
        numbers = self.table[codes.reshape(-1)]
        scaled: Floats = numbers * _spread(self.scales, self.block, numbers.size)
        found: Floats = scaled + np.float32(self.offset)
        return found


def blocks_of_4_bits(
    packed: Bytes, table: Floats, scales: Floats, block: int, shape: tuple[int, ...]
) -> Floats:
    """Two codes a byte, the high one first, over the whole tensor; a scale for each `block`.

    Raises ValueError where the sizes do not fit.
    """
    pairs = packed.reshape(-1)
    count = int(np.prod(shape))
    codes = np.stack((pairs >> 4, pairs & 15), axis=-1).reshape(-1)
    if codes.size not in (count, count + 1):
        raise ValueError(f"{codes.size} codes for {count} weights")
    values: Floats = table[codes[:count]] * _spread(scales, block, count)
    return values.reshape(shape)


def rows_of_8_bits(codes: NDArray[np.int8], largest: Floats) -> Floats:
    """codes [N, K]; `largest` [N] is what 127 stands for in each row."""
    rows = len(codes)
    found: Floats = codes.astype(np.float32) * largest.reshape(rows, 1) / np.float32(127)
    return found


def ordered_groups(codes: Bytes, zeros: Bytes | int, scales: Floats, order: Words) -> Floats:
    """codes [N, K] whose column k is of group order[k]; zeros and scales [N, groups]."""
    places = order.reshape(-1)
    num_groups = scales.shape[1]
    if places.size != codes.shape[1] or places.min() < 0 or places.max() >= num_groups:
        raise CheckpointError(
            f"the columns' groups are not {codes.shape[1]} of 0..{num_groups - 1}"
        )
    of_columns = zeros if isinstance(zeros, int) else zeros[:, places].astype(np.int16)
    found: Floats = (codes.astype(np.int16) - of_columns).astype(np.float32) * scales[:, places]
    return found


def gptq(qweight: Words, qzeros: Words, scales: Floats, g_idx: Words, zero_offset: int) -> Floats:
    """qweight [K / 8, N], qzeros [groups, N / 8], scales [groups, N], g_idx [K]."""
    zeros = nibbles(qzeros, 1).T + np.uint8(zero_offset)
    return ordered_groups(nibbles(qweight, 0).T, zeros, scales.T, g_idx)


def pack_quantized(packed: Words, scales: Floats, zero_point: Words | None, g_idx: Words) -> Floats:
    """packed [N, K / 8] of codes with 8 added, scales [N, groups], zero_point [N / 8, groups]."""
    codes = nibbles(packed, 1)
    zeros = 8 if zero_point is None else nibbles(zero_point, 0)[: len(codes)]
    return ordered_groups(codes, zeros, scales, g_idx)


def _spread(scales: Floats, block: int, count: int) -> Floats:
    flat = scales.reshape(-1)
    if flat.size != -(-count // block):
        raise ValueError(f"{flat.size} scales for {count} numbers in blocks of {block}")
    return np.repeat(flat, block)[:count]
