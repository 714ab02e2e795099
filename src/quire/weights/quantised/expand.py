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
from quire.weights.quantised.groups import TABLES, Bytes, Floats
from quire.weights.quantised.unpack import Words, awq_columns


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
    num_groups = scales.shape[1]
    if order.size != codes.shape[1] or order.min() < 0 or order.max() >= num_groups:
        raise CheckpointError(
            f"the columns' groups are not {codes.shape[1]} of 0..{num_groups - 1}"
        )
    of_columns = zeros if isinstance(zeros, int) else zeros[:, order].astype(np.int16)
    found: Floats = (codes.astype(np.int16) - of_columns).astype(np.float32) * scales[:, order]
    return found


def gptq(codes: Bytes, zeros: Bytes, scales: Floats, order: Words, zero_offset: int) -> Floats:
    """codes [K, N], zeros [groups, N] less the offset, scales [groups, N], order [K]."""
    return ordered_groups(codes.T, zeros.T.astype(np.int16) + zero_offset, scales.T, order)


def awq(qweight: Words, qzeros: Words, scales: Floats) -> Floats:
    """qweight [K, N / 8], qzeros [groups, N / 8], scales [groups, N]."""
    depth = len(qweight)
    order = (np.arange(depth) // -(-depth // len(scales))).astype(np.int32)
    return ordered_groups(awq_columns(qweight), awq_columns(qzeros), scales.T, order)


def pack_quantized(
    codes: Bytes, scales: Floats, zeros: Bytes | None, order: Words, bits: int
) -> Floats:
    """codes [N, K] with half of their range added, scales and zeros [N, groups], order [K]."""
    return ordered_groups(codes, 1 << (bits - 1) if zeros is None else zeros, scales, order)


def int_quantized(codes: NDArray[np.int8], scales: Floats) -> Floats:
    """codes [N, K], scales [N, groups] or [1, 1]."""
    found: Floats = codes.astype(np.float32) * of_columns(scales, codes.shape[1])
    return found


def nvfp4(codes: Bytes, scales: Bytes, multiplier: np.float32) -> Floats:
    """codes [N, K], scales [N, K / 16] in E4M3, each times a multiplier. The numbers of the table
    are doubled."""
    factors: Floats = E4M3[scales] * multiplier
    halves: Floats = TABLES["e2m1"][codes].astype(np.float32) / np.float32(2)
    return halves * of_columns(factors, codes.shape[1])


def of_columns(of_groups: Floats, depth: int) -> Floats:
    """[N, groups] for each of the columns. Raises ValueError where groups would differ in size."""
    groups = of_groups.shape[1]
    if depth % groups:
        raise ValueError(f"{groups} groups do not divide {depth} columns evenly")
    return np.repeat(of_groups, depth // groups, axis=1)


def _spread(scales: Floats, block: int, count: int) -> Floats:
    flat = scales.reshape(-1)
    if flat.size != -(-count // block):
        raise ValueError(f"{flat.size} scales for {count} numbers in blocks of {block}")
    return np.repeat(flat, block)[:count]
