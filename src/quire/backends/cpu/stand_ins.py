"""Made-up weights for a model of which only the time of steps is wanted.

Nothing is packed: the bytes are such that no number is too large, or too small to be a normal one,
which could take another time. Weights lie in a buffer far larger than the caches, so that a step
reads them from memory as it would its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from quire.backends.base import Dtype
from quire.backends.cpu.library import Library
from quire.backends.cpu.lowering.native_op import StoredWeight
from quire.backends.cpu.packing import huge_pages
from quire.backends.cpu.stored_weights import num_bytes
from quire.program.values import GroupedFormat
from quire.units import MiB, ceil_div

_BUFFER_BYTES = 256 * MiB
"""Weights begin again at its start where there is no room left. No cache of a processor holds as
much of one core's."""
_SMALL = (0x3B, 0x3C, 0x3D, 0xBB, 0xBC, 0xBD)
"""High bytes of a bfloat16 or float32 of about 0.01."""
_TINY = (0x2C, 0x2D, 0x2E, 0xAC, 0xAD, 0xAE)
"""High bytes of a float32 of about 1e-12, or of a sum of a row's integers of about 1e9: of rounded
weights both are there, and their product is no large number."""
_LARGE = (0x52, 0x53, 0x54, 0xD2, 0xD3, 0xD4)
"""Likewise of about 1e12, by which scales in bytes are divided."""
_BELOW_TWO = 0x3F
"""The high byte of a float16 of at most this size, without its sign, is a number below 2."""
_PERIOD = 4 * 262_147
"""Bytes that are random, four times a prime, so that the rows of a matrix differ. What is stored in
four bytes lies at a multiple of four."""
_ALIGNMENT = 64


def stand_ins(
    library: Library, weights: Sequence[StoredWeight], dtype: Dtype
) -> Mapping[StoredWeight, NDArray[np.uint8]]:
    """A place for each, filled. Vectors have places of their own; each number is 0.5."""
    sizes = {weight: num_bytes(library, weight, dtype) for weight in weights}
    plain = {weight: size for weight, size in sizes.items() if weight.param.format == "dense"}
    rounded = [item for item in sizes.items() if item[0] not in plain]
    vectors = {weight: size for weight, size in plain.items() if weight.kind == "vector"}
    return {
        **_in_buffer([item for item in plain.items() if item[0] not in vectors], _plain_numbers()),
        **_in_buffer([item for item in rounded if not _is_divided(item[0])], _rounded_numbers()),
        **_in_buffer([item for item in rounded if _is_divided(item[0])], _rounded_numbers(_LARGE)),
        **{w: np.full(size // 4, 0.5, np.float32).view(np.uint8) for w, size in vectors.items()},
    }


def _is_divided(weight: StoredWeight) -> bool:
    format = weight.param.format
    return isinstance(format, GroupedFormat) and format.scale == "e4m3"


def _in_buffer(
    sizes: Sequence[tuple[StoredWeight, int]], numbers: NDArray[np.uint8]
) -> dict[StoredWeight, NDArray[np.uint8]]:
    """Places one behind the other."""
    lengths = {weight: ceil_div(size, _ALIGNMENT) * _ALIGNMENT for weight, size in sizes}
    buffer = _filled(
        max(max(lengths.values(), default=0), min(sum(lengths.values()), _BUFFER_BYTES)), numbers
    )
    places: dict[StoredWeight, NDArray[np.uint8]] = {}
    begin = 0
    for weight, size in sizes:
        begin = 0 if begin + lengths[weight] > buffer.size else begin
        places[weight] = buffer[begin : begin + size]
        begin += lengths[weight]
    return places


def _plain_numbers() -> NDArray[np.uint8]:
    """In a dtype: every second byte is a high one."""
    random = np.random.default_rng(0)
    numbers = random.integers(0, 256, _PERIOD, dtype=np.uint8)
    numbers[1::2] = random.choice(np.array(_SMALL, np.uint8), _PERIOD // 2)
    return numbers


def _rounded_numbers(floats: tuple[int, ...] = _TINY) -> NDArray[np.uint8]:
    """With scales, of which `floats` are the high bytes: as random as can be, since the power that
    a processor takes, and so its clock, depends on the bits that it multiplies."""
    random = np.random.default_rng(0)
    numbers = random.integers(0, 256, _PERIOD, dtype=np.uint8)
    numbers[1::4] &= np.uint8(0x80 | _BELOW_TWO)
    numbers[3::4] = random.choice(np.array(floats, np.uint8), _PERIOD // 4)
    return numbers


def _filled(size: int, numbers: NDArray[np.uint8]) -> NDArray[np.uint8]:
    memory = huge_pages(size)
    for begin in range(0, size, _PERIOD):
        piece = memory[begin : begin + _PERIOD]
        piece[:] = numbers[: piece.size]
    return memory
