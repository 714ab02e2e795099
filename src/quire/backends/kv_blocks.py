"""The form of KV blocks outside of a model, as `read_blocks` and `write_blocks` have them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def check_blocks(data: NDArray[np.uint8], shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """The same array. Raises ValueError unless it is one of blocks of that shape."""
    if data.shape != shape or data.dtype != np.uint8:
        raise ValueError(f"blocks are {data.dtype} {data.shape}, not uint8 {shape}")
    return data
