"""Made-up weights for a model of which only the time of steps is wanted.

Nothing is packed: the bytes are numbers of a usual size in every format. All weights lie in one
buffer, far larger than the caches, so that a step reads them from memory as it would its own.
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
_BYTES = (0x3B, 0x3C, 0x3D, 0xBB, 0xBC, 0xBD)
"""Two of these are a bfloat16 or four a float32 of about 0.01, two a float16 of about 1, and each
an int8 or two int4: nothing overflows, and nothing is too small to be a normal number."""
_PERIOD = 1_048_583
"""A prime, so that the rows of a matrix differ."""
_ALIGNMENT = 64


def stand_ins(
    library: Library, weights: Sequence[StoredWeight], dtype: Dtype
) -> Mapping[StoredWeight, NDArray[np.uint8]]:
    """A place for each, filled. Vectors have places of their own; each number is 0.5."""
    sizes = {weight: num_bytes(library, weight, dtype) for weight in weights}
    largest = max(size for weight, size in sizes.items() if weight.kind != "vector")
    total = sum(sizes.values()) + _ALIGNMENT * len(sizes)
    buffer = _filled(max(largest, min(total, _BUFFER_BYTES)))
    places: dict[StoredWeight, NDArray[np.uint8]] = {}
    begin = 0
    for weight, size in sizes.items():
        if weight.kind == "vector":
            places[weight] = np.full(size // 4, 0.5, np.float32).view(np.uint8)
            continue
        begin = 0 if begin + size > buffer.size else begin
        places[weight] = buffer[begin : begin + size]
        begin += ceil_div(size, _ALIGNMENT) * _ALIGNMENT
    return places


def _filled(size: int) -> NDArray[np.uint8]:
    numbers = np.random.default_rng(0).choice(np.array(_BYTES, np.uint8), _PERIOD)
    memory = huge_pages(size)
    for begin in range(0, size, _PERIOD):
        piece = memory[begin : begin + _PERIOD]
        piece[:] = numbers[: piece.size]
    return memory
