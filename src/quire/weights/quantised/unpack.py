"""From the tensors of AWQ, GPTQ and compressed-tensors to `Groups`. Exact: nothing is rounded.

Sources: AutoAWQ `awq/utils/packing_utils.py`; GPTQModel `nn_modules/qlinear/torch.py`;
compressed-tensors `compressors/quantized_compressors/pack_quantized.py`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quire.errors import CheckpointError
from quire.program.values import GroupedFormat
from quire.weights.quantised.groups import Bytes, Floats, Groups

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

    Raises CheckpointError for groups that are not neighbours along K ("act-order").
    """
    codes = nibbles(qweight, 0).T
    depth = codes.shape[1]
    size = -(-depth // max(len(scales), 1))
    if g_idx is not None and not np.array_equal(g_idx.reshape(-1), np.arange(depth) // size):
        raise CheckpointError(
            "g_idx does not name the groups in ascending order (desc_act, act-order): such "
            "checkpoints cannot be held; use one made with desc_act=false or static groups"
        )
    zeros = (nibbles(qzeros, 1).T + np.uint8(zero_offset)).astype(np.uint8)
    return _groups(format, codes, scales.T, zeros)


def pack_quantized(
    format: GroupedFormat, packed: Words, scales: Floats, zero_point: Words | None
) -> Groups:
    """packed [N, K / 8] of codes with 8 added, scales [N, groups], zero_point [N / 8, groups]."""
    codes = nibbles(packed, 1)
    zeros = None if zero_point is None else nibbles(zero_point, 0)
    if zeros is not None:
        zeros = zeros[: len(codes)]
    return _groups(format, codes, scales, zeros)


def int_quantized(format: GroupedFormat, weight: NDArray[np.int8], scales: Floats) -> Groups:
    """weight [N, K], scales [N, groups]."""
    return _groups(format, weight.view(np.uint8) ^ np.uint8(128), scales, None)


def _groups(format: GroupedFormat, codes: Bytes, scales: Floats, zeros: Bytes | None) -> Groups:
    """A row's only scale is repeated for all its groups."""
    num_groups = format.num_groups(codes.shape[1])

    def spread(array: NDArray[np.generic]) -> NDArray[np.generic]:
        return np.ascontiguousarray(
            np.repeat(array, num_groups, axis=1) if array.shape[1] == 1 else array
        )

    return Groups(
        format,
        np.ascontiguousarray(codes),
        spread(scales).astype(np.float32),
        None if zeros is None else spread(zeros).astype(np.uint8),
    )
