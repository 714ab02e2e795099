"""Float32 values of the codes of float formats.

Sources: the OCP 8-bit floating point specification (E4M3); bitsandbytes `functional.py`,
`get_4bit_type`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def _e4m3() -> Floats:
    """Return the value of each byte: a sign bit, 4 bits of exponent with bias 7 and 3 bits of
    mantissa. The format has NaN but not infinity."""
    code = np.arange(256)
    exponent, mantissa = (code >> 3) & 15, code & 7
    fraction = np.where(exponent == 0, mantissa / 8, 1 + mantissa / 8)
    value = fraction * 2.0 ** (np.maximum(exponent, 1) - 7)
    value[code & 127 == 127] = np.nan
    numbers: Floats = np.where(code & 128, -value, value).astype(np.float32)
    return numbers


E4M3 = _e4m3()
"""Value of each byte of an FP8 tensor (e4m3fn)."""

NF4 = np.array(
    [
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
        -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
        0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
        0.7229568362236023, 1.0,
    ],
    np.float32,
)  # fmt: skip

_FP4 = np.array([0, 0.0625, 8, 12, 4, 6, 2, 3], np.float32) / np.float32(12)
FP4: Floats = np.concatenate([_FP4, -_FP4])
