"""From the tensors of AWQ, GPTQ and compressed-tensors to `Groups`. Exact: nothing is rounded.

Sources: AutoAWQ `awq/utils/packing_utils.py`; GPTQModel `nn_modules/qlinear/torch.py`;
compressed-tensors `compressors/quantized_compressors/pack_quantized.py`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quire.errors import CheckpointError
from quire.program.values import GroupedFormat
from quire.weights.quantised.groups import Bytes, Floats, Groups, Order

Words = NDArray[np.int32]

_AWQ_ORDER = np.array([0, 4, 1, 5, 2, 6, 3, 7])
"""Which nibble of a word has its first, second ... column."""


def nibbles(words: Words, axis: int) -> Bytes:
    """Words of 8 codes, the lowest bits first, along an axis that becomes 8 times longer."""
    moved = np.ascontiguousarray(np.moveaxis(words, axis, -1))
    pairs = moved.astype("<i4", copy=False).view(np.uint8)
    codes = np.stack((pairs & 15, pairs >> 4), axis=-1).reshape(*pairs.shape[:-1], -1)
    unpacked: Bytes = np.moveaxis(codes, -1, axis)
    return unpacked


def awq(format: GroupedFormat, qweight: Words, qzeros: Words, scales: Floats) -> Groups:
    """qweight [K, N / 8], qzeros [groups, N / 8], scales [groups, N]."""

    def columns(words: Words) -> Bytes:
        codes = nibbles(words, 1)
        ordered = codes.reshape(len(codes), -1, 8)[:, :, _AWQ_ORDER]
        turned: Bytes = ordered.reshape(len(codes), -1).T
        return turned

    return _groups(format, columns(qweight), scales.T, columns(qzeros))


def gptq(
    format: GroupedFormat,
    qweight: Words,
    qzeros: Words,
    scales: Floats,
    g_idx: NDArray[np.generic] | None,
    zero_offset: int,
) -> Groups:
    """qweight [K / 8, N], qzeros [groups, N / 8], scales [groups, N], g_idx [K].

    Raises CheckpointError for groups that are not neighbours along K ("act-order") in a format
    without an order.
    """
    codes = nibbles(qweight, 0).T
    depth = codes.shape[1]
    size = -(-depth // max(len(scales), 1))
    zeros = (nibbles(qzeros, 1).T + np.uint8(zero_offset)).astype(np.uint8)
    if format.has_order:
        return _groups(format, codes, scales.T, zeros, columns_by_group(g_idx, size, depth))
    if g_idx is not None and not np.array_equal(g_idx.reshape(-1), np.arange(depth) // size):
        raise CheckpointError(
            "g_idx does not name the groups in ascending order (desc_act, act-order), and "
            'config.json does not say so; write "desc_act": true there, or use a checkpoint made '
            "with static groups"
        )
    return _groups(format, codes, scales.T, zeros)


def columns_by_group(g_idx: NDArray[np.generic] | None, size: int, depth: int) -> Order:
    """The columns, group after group, each of `size`; those of a group as they lie. None: all are
    in order. Raises CheckpointError for groups of another size."""
    if g_idx is None:
        return np.arange(depth, dtype=np.int32)
    of_columns = g_idx.reshape(-1)
    order: Order = np.argsort(of_columns, kind="stable").astype(np.int32)
    if not np.array_equal(of_columns[order], np.arange(depth) // size):
        raise CheckpointError(
            f"g_idx does not put {size} of {depth} columns into each group; quantization='int8' or "
            "'int4' loads such a checkpoint, and rounds the numbers again"
        )
    return order


def pack_quantized(
    format: GroupedFormat,
    packed: Words,
    scales: Floats,
    zero_point: Words | None,
    g_idx: NDArray[np.generic] | None = None,
) -> Groups:
    """packed [N, K / 8] of codes with 8 added, scales [N, groups], zero_point [N / 8, groups],
    g_idx [K] of a format with an order."""
    codes = nibbles(packed, 1)
    zeros = None if zero_point is None else nibbles(zero_point, 0)
    if zeros is not None:
        zeros = zeros[: len(codes)]
    depth = codes.shape[1]
    size = -(-depth // max(scales.shape[1], 1))
    order = columns_by_group(g_idx, size, depth) if format.has_order else None
    return _groups(format, codes, scales, zeros, order)


def int_quantized(format: GroupedFormat, weight: NDArray[np.int8], scales: Floats) -> Groups:
    """weight [N, K], scales [N, groups]."""
    return _groups(format, weight.view(np.uint8) ^ np.uint8(128), scales, None)


def nvfp4_pack(format: GroupedFormat, packed: Bytes, scales: Bytes, global_scale: Floats) -> Groups:
    """packed [N, K / 2], the low half of a byte first; scales [N, groups] in E4M3, which the global
    scale [1] divides. The numbers of the table are doubled."""
    codes = np.stack((packed & 15, packed >> 4), axis=-1).reshape(len(packed), -1)
    divisor = np.float32(2) * global_scale.reshape(-1)
    divisors = np.ascontiguousarray(np.broadcast_to(divisor, (len(packed),)))
    return Groups(format, codes, np.ascontiguousarray(scales), divisors=divisors)


def _groups(
    format: GroupedFormat,
    codes: Bytes,
    scales: Floats,
    zeros: Bytes | None,
    order: Order | None = None,
) -> Groups:
    """A row's only scale is repeated for all its groups."""
    num_groups = format.num_groups(codes.shape[1])

    def spread(array: NDArray[np.generic]) -> NDArray[np.generic]:
        return np.ascontiguousarray(
            np.repeat(array, num_groups, axis=1) if array.shape[1] == 1 else array
        )

    return Groups(
        format,
        np.ascontiguousarray(codes if order is None else codes[:, order]),
        spread(scales).astype(np.float32),
        None if zeros is None else spread(zeros).astype(np.uint8),
        order=order,
    )
