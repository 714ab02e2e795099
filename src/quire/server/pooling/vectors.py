"""How vectors are written in replies: as JSON numbers, or as base64 of their bytes."""

from __future__ import annotations

import base64
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

EmbedDtype = Literal["float32", "float16", "bfloat16"]
Endianness = Literal["native", "little", "big"]


def written(
    data: NDArray[np.float32],
    form: str,
    dtype: EmbedDtype = "float32",
    order: Endianness = "native",
) -> Any:
    """A vector as `form` says: `float` for a list, `base64` for a string."""
    if form == "float":
        return data.tolist()
    return base64.b64encode(numbers(data, dtype, order)).decode()


def numbers(data: NDArray[np.float32], dtype: EmbedDtype, order: Endianness) -> bytes:
    """The bytes of the numbers."""
    mark = {"native": "=", "little": "<", "big": ">"}[order]
    if dtype == "float32":
        return data.astype(f"{mark}f4").tobytes()
    if dtype == "float16":
        return data.astype(f"{mark}f2").tobytes()
    bits = np.ascontiguousarray(data).view(np.uint32)
    # Round to the nearest, ties to even.
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    found: bytes = rounded.astype(f"{mark}u2").tobytes()
    return found
