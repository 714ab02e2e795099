"""Random bytes as weights, for a model that only measures the time of steps.

Nothing is packed. The bytes are chosen so that numbers neither overflow nor become subnormal, which
could change the time of a step. Weights share a buffer far larger than the caches, so that a step
reads them from memory, as it reads real weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from quire.backends.base import CompileOptions
from quire.backends.cpu.library import Library
from quire.backends.cpu.lowering.native_op import StoredWeight
from quire.backends.cpu.packing import huge_pages
from quire.backends.cpu.stored_weights import Place, expected_numbers, num_bytes
from quire.program.values import GroupedFormat
from quire.units import MiB, ceil_div

_BUFFER_BYTES = 256 * MiB
"""Maximum size of the shared buffer. At its end, weights continue at its start. It is larger than
the cache that one core of any processor can use."""
_SMALL = (0x3B, 0x3C, 0x3D, 0xBB, 0xBC, 0xBD)
"""High bytes of a bfloat16 or float32 of about 0.01."""
_SMALL_HALVES = (0x1F, 0x20, 0x21, 0x9F, 0xA0, 0xA1)
"""High bytes of a float16 of about 0.01."""
_TINY = (0x2C, 0x2D, 0x2E, 0xAC, 0xAD, 0xAE)
"""High bytes of a float32 of about 1e-12. Rounded weights have scales and sums of a row's integers
of about 1e9; their product must stay small."""
_LARGE = (0x52, 0x53, 0x54, 0xD2, 0xD3, 0xD4)
"""High bytes of a float32 of about 1e12, by which E4M3 scales are divided."""
_BELOW_TWO = 0x3F
"""A float16 is below 2 in magnitude if its high byte, without the sign bit, is at most this."""
_PERIOD = 4 * 262_147
"""Number of random bytes before they repeat: four times a prime, so that the rows of a matrix
differ and numbers of four bytes stay aligned."""
_ALIGNMENT = 64


def stand_ins(
    library: Library, weights: Sequence[StoredWeight], options: CompileOptions
) -> Mapping[StoredWeight, Place]:
    """Return filled memory for each weight. Vectors have their own memory, full of 0.5."""
    dtype = options.dtype
    numbers = {one: expected_numbers(one, options.stored_numbers, dtype) for one in weights}
    sizes = {one: num_bytes(library, one, dtype, kept) for one, kept in numbers.items()}
    plain = {weight: size for weight, size in sizes.items() if weight.param.format == "dense"}
    rounded = [item for item in sizes.items() if item[0] not in plain]
    vectors = {weight: size for weight, size in plain.items() if weight.kind == "vector"}
    dense = [item for item in plain.items() if item[0] not in vectors]
    halves = [item for item in dense if numbers[item[0]] == "float16"]
    others = [item for item in dense if numbers[item[0]] != "float16"]
    places = {
        **_in_buffer(others, _plain_numbers(_SMALL)),
        **_in_buffer(halves, _plain_numbers(_SMALL_HALVES)),
        **_in_buffer([item for item in rounded if not _is_divided(item[0])], _rounded_numbers()),
        **_in_buffer([item for item in rounded if _is_divided(item[0])], _rounded_numbers(_LARGE)),
        **{w: np.full(size // 4, 0.5, np.float32).view(np.uint8) for w, size in vectors.items()},
    }
    return {weight: Place(place, numbers[weight]) for weight, place in places.items()}


def _is_divided(weight: StoredWeight) -> bool:
    format = weight.param.format
    return isinstance(format, GroupedFormat) and format.scale == "e4m3"


def _in_buffer(
    sizes: Sequence[tuple[StoredWeight, int]], numbers: NDArray[np.uint8]
) -> dict[StoredWeight, NDArray[np.uint8]]:
    """Return consecutive places in a buffer, starting again at its start when it is full."""
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


def _plain_numbers(highs: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return bytes for plain numbers: every second byte is one of these high bytes."""
    random = np.random.default_rng(0)
    numbers = random.integers(0, 256, _PERIOD, dtype=np.uint8)
    numbers[1::2] = random.choice(np.array(highs, np.uint8), _PERIOD // 2)
    return numbers


def _rounded_numbers(floats: tuple[int, ...] = _TINY) -> NDArray[np.uint8]:
    """Return bytes for rounded weights; the high bytes of their scales are from `floats`. Other
    bytes are random, because a processor's power and clock depend on the bits that it multiplies.
    """
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
