"""How twins read and write the numbers of flat arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.backends.kv_formats import narrow_to_bfloat16, widen_bfloat16

Floats = NDArray[np.float32]
Numbers = NDArray[Any]
Grid = tuple[int, ...]


def widened(numbers: Numbers) -> Floats:
    """float32 numbers, given those, the bits of bfloat16, or integers."""
    if numbers.dtype == np.uint16:
        return widen_bfloat16(numbers)
    return numbers if numbers.dtype == np.float32 else numbers.astype(np.float32)


def like(numbers: Floats, stored: Numbers) -> Numbers:
    """The numbers as an array of the type of `stored` holds them."""
    return narrow_to_bfloat16(numbers) if stored.dtype == np.uint16 else numbers


def rows_of(flat: Numbers, count: int, stride: int, width: int) -> Numbers:
    """A view [count, width] of rows that begin `stride` numbers after another. Raises ValueError if
    they are not all there."""
    if count and (count - 1) * stride + width > len(flat):
        raise ValueError(f"{count} rows of {width} with stride {stride} are not in {len(flat)}")
    steps = (stride * flat.itemsize, flat.itemsize)
    return np.lib.stride_tricks.as_strided(flat, (int(count), int(width)), steps)
