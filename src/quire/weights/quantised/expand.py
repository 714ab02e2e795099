"""Formulas that expand the tensors of quantised checkpoints to float32.

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
    """Multiply codes [N, K] by one scale, a scale per row ([N] or [N, 1]), or a scale per block.

    Raises ValueError if the number of scales is wrong.
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
    for index in range(high):  # by rows of blocks, to avoid an array of scales as large as values
        values[index * block[0] : (index + 1) * block[0]] *= spread[index]
    return values


@dataclass(frozen=True, slots=True)
class NestedScales:
    """Scales of bitsandbytes' "double quantisation": they are bytes that have scales themselves."""

    table: Floats
    """[256]: the value of each byte."""
    scales: Floats
    block: int
    offset: float

    def expand(self, codes: Bytes) -> Floats:
        """Return the scales for which the bytes stand."""
        numbers = self.table[codes.reshape(-1)]
        scaled: Floats = numbers * _spread(self.scales, self.block, numbers.size)
        found: Floats = scaled + np.float32(self.offset)
        return found


def blocks_of_4_bits(
    packed: Bytes, table: Floats, scales: Floats, block: int, shape: tuple[int, ...]
) -> Floats:
    """Expand a tensor with two codes in a byte, the high half first, and a scale for each `block`
    numbers. Rows follow each other without padding. Raises ValueError if the sizes do not match.
    """
    pairs = packed.reshape(-1)
    count = int(np.prod(shape))
    codes = np.stack((pairs >> 4, pairs & 15), axis=-1).reshape(-1)
    if codes.size not in (count, count + 1):
        raise ValueError(f"there must be {count} codes, not {codes.size}")
    values: Floats = table[codes[:count]] * _spread(scales, block, count)
    return values.reshape(shape)


def rows_of_8_bits(codes: NDArray[np.int8], largest: Floats) -> Floats:
    """Expand codes [N, K]; `largest` [N] is the value of code 127 in each row."""
    rows = len(codes)
    found: Floats = codes.astype(np.float32) * largest.reshape(rows, 1) / np.float32(127)
    return found


def ordered_groups(codes: Bytes, zeros: Bytes | int, scales: Floats, order: Words) -> Floats:
    """Expand codes [N, K] whose column k belongs to group order[k]; zeros and scales are
    [N, groups]."""
    num_groups = scales.shape[1]
    if order.size != codes.shape[1] or order.min() < 0 or order.max() >= num_groups:
        raise CheckpointError(
            f"the columns' groups must be {codes.shape[1]} numbers from 0 to {num_groups - 1}"
        )
    of_columns = zeros if isinstance(zeros, int) else zeros[:, order].astype(np.int16)
    found: Floats = (codes.astype(np.int16) - of_columns).astype(np.float32) * scales[:, order]
    return found


def gptq(codes: Bytes, zeros: Bytes, scales: Floats, order: Words, zero_offset: int) -> Floats:
    """Expand codes [K, N] with zeros [groups, N], to which the offset is added, scales [groups, N]
    and the group of each column, order [K]."""
    return ordered_groups(codes.T, zeros.T.astype(np.int16) + zero_offset, scales.T, order)


def awq(qweight: Words, qzeros: Words, scales: Floats) -> Floats:
    """Expand qweight [K, N / 8] with qzeros [groups, N / 8] and scales [groups, N]."""
    depth = len(qweight)
    order = (np.arange(depth) // -(-depth // len(scales))).astype(np.int32)
    return ordered_groups(awq_columns(qweight), awq_columns(qzeros), scales.T, order)


def pack_quantized(
    codes: Bytes, scales: Floats, zeros: Bytes | None, order: Words, bits: int
) -> Floats:
    """Expand codes [N, K], to which half of their range was added, with scales and zeros
    [N, groups] and the group of each column, order [K]."""
    return ordered_groups(codes, 1 << (bits - 1) if zeros is None else zeros, scales, order)


def int_quantized(codes: NDArray[np.int8], scales: Floats) -> Floats:
    """Multiply codes [N, K] by scales [N, groups] or [1, 1]."""
    found: Floats = codes.astype(np.float32) * of_columns(scales, codes.shape[1])
    return found


def nvfp4(codes: Bytes, scales: Bytes, multiplier: np.float32) -> Floats:
    """Expand codes [N, K] with scales [N, K / 16] in E4M3, which are multiplied by `multiplier`.
    The result is halved because the numbers of the table are doubled."""
    factors: Floats = E4M3[scales] * multiplier
    halves: Floats = TABLES["e2m1"][codes].astype(np.float32) / np.float32(2)
    return halves * of_columns(factors, codes.shape[1])


def of_columns(of_groups: Floats, depth: int) -> Floats:
    """Repeat [N, groups] for each column. Raises ValueError if groups would differ in size."""
    groups = of_groups.shape[1]
    if depth % groups:
        raise ValueError(f"the number of columns ({depth}) must be a multiple of {groups} groups")
    return np.repeat(of_groups, depth // groups, axis=1)


def _spread(scales: Floats, block: int, count: int) -> Floats:
    flat = scales.reshape(-1)
    if flat.size != -(-count // block):
        raise ValueError(f"{count} numbers in blocks of {block} do not need {flat.size} scales")
    return np.repeat(flat, block)[:count]
