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
from quire.units import MiB, ceil_div

_BUFFER_BYTES = 256 * MiB
"""Weights begin again at its start where there is no room left. No cache of a processor holds as
much of one core's."""
_PLAIN_BYTES = (0x3B, 0x3C, 0x3D, 0xBB, 0xBC, 0xBD)
"""Of weights in the model's dtype: two of these are a bfloat16 and four a float32 of about 0.01."""
_ROUNDED_BYTES = (0x2C, 0x2D, 0x2E, 0xAC, 0xAD, 0xAE)
"""Of formats with scales. Four of these are a scale of about 1e-12, or a sum of a row's integers of
about 1e9: their product is no large number. Two are a float16 of about 0.1."""
_PERIOD = 1_048_583
"""A prime, so that the rows of a matrix differ."""
_ALIGNMENT = 64


def stand_ins(
    library: Library, weights: Sequence[StoredWeight], dtype: Dtype
) -> Mapping[StoredWeight, NDArray[np.uint8]]:
    """A place for each, filled. Vectors have places of their own; each number is 0.5."""
    sizes = {weight: num_bytes(library, weight, dtype) for weight in weights}
    plain = {weight: size for weight, size in sizes.items() if weight.param.format == "dense"}
    vectors = {weight: size for weight, size in plain.items() if weight.kind == "vector"}
    return {
        **_in_buffer([item for item in plain.items() if item[0] not in vectors], _PLAIN_BYTES),
        **_in_buffer([item for item in sizes.items() if item[0] not in plain], _ROUNDED_BYTES),
        **{w: np.full(size // 4, 0.5, np.float32).view(np.uint8) for w, size in vectors.items()},
    }


def _in_buffer(
    sizes: Sequence[tuple[StoredWeight, int]], numbers: Sequence[int]
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


def _filled(size: int, numbers: Sequence[int]) -> NDArray[np.uint8]:
    pool = np.random.default_rng(0).choice(np.array(numbers, np.uint8), _PERIOD)
    memory = huge_pages(size)
    for begin in range(0, size, _PERIOD):
        piece = memory[begin : begin + _PERIOD]
        piece[:] = pool[: piece.size]
    return memory
