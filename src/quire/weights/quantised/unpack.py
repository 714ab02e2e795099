"""From the tensors of quantised checkpoints to codes and `Groups`. Exact: nothing is rounded.

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
"""Exponents of scales have 127 added, and the numbers of the table are doubled."""
_AWQ_ORDER = np.array([0, 4, 1, 5, 2, 6, 3, 7])
"""Which nibble of a word has its first, second ... column."""


def fields(words: Words, bits: int, axis: int) -> Bytes:
    """Codes of some bits, one after the other from the lowest bit of the first word, along an axis.

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
    """Codes of some bits, packed along the first axis: the first piece of the rows has the highest
    bits. Ten codes of 3 bits are in a word of 32, others in bytes."""
    count = 10 if bits == 3 else 8 // bits
    mask = (1 << bits) - 1
    pieces = [(words >> (bits * place)) & mask for place in reversed(range(count))]  # type: ignore[operator]
    codes: Bytes = np.concatenate(pieces).astype(np.uint8)
    return codes


def pairs(packed: Bytes) -> Bytes:
    """Two codes of 4 bits a byte along the last axis, the low half first."""
    codes: Bytes = np.stack((packed & 15, packed >> 4), axis=-1).reshape(len(packed), -1)
    return codes


def awq_columns(words: Words) -> Bytes:
    """[K, N / 8] words to [N, K] codes."""
    codes = fields(words, 4, 1)
    ordered = codes.reshape(len(codes), -1, 8)[:, :, _AWQ_ORDER]
    turned: Bytes = ordered.reshape(len(codes), -1).T
    return turned


def awq(format: GroupedFormat, qweight: Words, qzeros: Words, scales: Floats) -> Groups:
    """qweight [K, N / 8], qzeros [groups, N / 8], scales [groups, N]."""
    return grouped(format, awq_columns(qweight), scales.T, awq_columns(qzeros))


def has_whole_groups(order: Order, num_groups: int, *, in_order: bool) -> bool:
    """Whether every group has as many columns as the next; if `in_order`, whether they are
    neighbours too, and groups follow each other. `order`: the group of each column."""
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
    """codes [N, K], scales and zeros [N, groups], of_columns [K]: the group of each column, of a
    format with an order. A row's only scale is repeated for all its groups."""
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
    """codes [N, K], scales [N, groups] in E4M3, each divided by the divisor. The numbers of the
    table are doubled."""
    divisors = np.full(len(codes), np.float32(2) * divisor, np.float32)
    return Groups(format, codes, np.ascontiguousarray(scales), divisors=divisors)


def mxfp4(format: GroupedFormat, codes: Bytes, exponents: Bytes) -> Groups:
    """codes [N, K], exponents [N, K / 32], to which 127 is added."""
    powers = exponents.astype(np.int32) - SCALE_OF_HALVES
    return Groups(format, codes, powers_of_two(powers))


def powers_of_two(exponents: NDArray[np.int32]) -> Floats:
    """As float32; 2^127, of the byte 255, stands for no number in MXFP4."""
    powers: Floats = np.ldexp(np.float32(1), exponents)
    powers[exponents == 255 - SCALE_OF_HALVES] = np.nan
    return powers
