"""Converts tensors of quantised checkpoints to codes and `Groups` without rounding.

Sources: AutoAWQ `awq/utils/packing_utils.py`; GPTQModel `nn_modules/qlinear/torch.py`; HQQ
`core/bitpack.py`; compressed-tensors `compressors/nvfp4`; the OCP Microscaling specification.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quire.errors import CheckpointError
from quire.program.values import GroupedFormat
from quire.weights.quantised.groups import Bytes, Floats, Groups, Order

Words = NDArray[np.int32]

NVFP4 = GroupedFormat("e2m1", 16, scale="e4m3")
MXFP4 = GroupedFormat("e2m1", 32)
SCALE_OF_HALVES = 128
"""Bias of stored exponents: 127, plus 1 because the numbers of the table are doubled."""
_AWQ_ORDER = np.array([0, 4, 1, 5, 2, 6, 3, 7])
"""Index of the nibble that holds each of a word's eight columns."""


def fields(words: Words, bits: int, axis: int) -> Bytes:
    """Unpack codes that are stored along an axis, from the lowest bit of the first word upwards.

    A code of 3 bits may begin in one word and end in the next.
    """
    moved = np.ascontiguousarray(np.moveaxis(words, axis, -1))
    found = moved.astype("<i4", copy=False).view(np.uint8)
    if bits == 4:
        codes = np.stack((found & 15, found >> 4), axis=-1).reshape(*found.shape[:-1], -1)
    elif bits == 8:
        codes = found
    else:
        single = np.unpackbits(found, axis=-1, bitorder="little")
        count = single.shape[-1] // bits
        split = single[..., : count * bits].reshape(*found.shape[:-1], count, bits)
        codes = np.packbits(split, axis=-1, bitorder="little")[..., 0]
    unpacked: Bytes = np.moveaxis(codes, -1, axis)
    return unpacked


def stacked_fields(words: NDArray[np.generic], bits: int) -> Bytes:
    """Unpack codes that are packed along the first axis: the first part of the rows is in the
    highest bits. A 32-bit word holds ten codes of 3 bits; a byte holds codes of other widths."""
    count = 10 if bits == 3 else 8 // bits
    mask = (1 << bits) - 1
    pieces = [(words >> (bits * place)) & mask for place in reversed(range(count))]  # type: ignore[operator]
    codes: Bytes = np.concatenate(pieces).astype(np.uint8)
    return codes


def pairs(packed: Bytes) -> Bytes:
    """Unpack two codes of 4 bits from each byte along the last axis, the low half first."""
    codes: Bytes = np.stack((packed & 15, packed >> 4), axis=-1).reshape(len(packed), -1)
    return codes


def awq_columns(words: Words) -> Bytes:
    """Unpack AWQ words [K, N / 8] into codes [N, K]."""
    codes = fields(words, 4, 1)
    ordered = codes.reshape(len(codes), -1, 8)[:, :, _AWQ_ORDER]
    turned: Bytes = ordered.reshape(len(codes), -1).T
    return turned


def awq(format: GroupedFormat, qweight: Words, qzeros: Words, scales: Floats) -> Groups:
    """Convert qweight [K, N / 8], qzeros [groups, N / 8] and scales [groups, N]."""
    return grouped(format, awq_columns(qweight), scales.T, awq_columns(qzeros))


def has_whole_groups(order: Order, num_groups: int, *, in_order: bool) -> bool:
    """Whether all groups have the same number of columns (the last may have fewer). If `in_order`,
    the columns of group 0 must also come first, then those of group 1, and so on. `order`: the
    group of each column."""
    size = -(-order.size // max(num_groups, 1))
    found = order if in_order else np.sort(order)
    return bool(np.array_equal(found, np.arange(order.size) // size))


def grouped(
    format: GroupedFormat,
    codes: Bytes,
    scales: Floats,
    zeros: Bytes | None = None,
    of_columns: Order | None = None,
) -> Groups:
    """Convert codes [N, K], scales and zeros [N, groups]. `of_columns` [K] is the group of each
    column, which a format with an order needs. If a row has one scale, all its groups get it."""
    num_groups = format.num_groups(codes.shape[1])

    def spread(array: NDArray[np.generic]) -> NDArray[np.generic]:
        return np.ascontiguousarray(
            np.repeat(array, num_groups, axis=1) if array.shape[1] == 1 else array
        )

    order: Order | None = None
    if format.has_order:
        if of_columns is None:
            raise CheckpointError(f"a matrix in {format} needs the group of each column")
        order = np.argsort(of_columns, kind="stable").astype(np.int32)
    return Groups(
        format,
        np.ascontiguousarray(codes if order is None else codes[:, order]),
        spread(scales).astype(np.float32),
        None if zeros is None else spread(zeros).astype(np.uint8),
        order=order,
    )


def nvfp4(format: GroupedFormat, codes: Bytes, scales: Bytes, divisor: np.float32) -> Groups:
    """Convert codes [N, K] and scales [N, groups] in E4M3, which are divided by `divisor`. The
    divisor is doubled because the numbers of the table are."""
    divisors = np.full(len(codes), np.float32(2) * divisor, np.float32)
    return Groups(format, codes, np.ascontiguousarray(scales), divisors=divisors)


def mxfp4(format: GroupedFormat, codes: Bytes, exponents: Bytes) -> Groups:
    """Convert codes [N, K] and exponents [N, K / 32], which are stored with a bias of 127."""
    powers = exponents.astype(np.int32) - SCALE_OF_HALVES
    return Groups(format, codes, powers_of_two(powers))


def powers_of_two(exponents: NDArray[np.int32]) -> Floats:
    """Return powers of two as float32; NaN for the exponent of byte 255, as in MXFP4."""
    powers: Floats = np.ldexp(np.float32(1), exponents)
    powers[exponents == 255 - SCALE_OF_HALVES] = np.nan
    return powers
