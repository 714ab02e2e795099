"""Float32 values of the codes of float formats.

Sources: the OCP 8-bit floating point specification (E4M3, E5M2); bitsandbytes `functional.py`,
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

FLOAT8 = {"fp8_e4m3": (3, 7), "fp8_e5m2": (2, 15)}
"""Bits of the fraction, and what is subtracted from the exponent, of the 8-bit floats."""


def float8_codes(numbers: Floats, name: str) -> NDArray[np.uint8]:
    """The codes of the nearest 8-bit floats of a format of `FLOAT8`, ties to even, as torch rounds;
    a number that is too large becomes the largest one, or infinity if there is one."""
    fraction_bits, bias = FLOAT8[name]
    last = 0x7E if fraction_bits == 3 else 0x7C
    exponents, fractions = np.divmod(np.arange(last + 1), 1 << fraction_bits)
    fractions = fractions + ((exponents > 0) << fraction_bits)
    values = np.ldexp(fractions.astype(np.float64), np.maximum(exponents, 1) - bias - fraction_bits)
    borders, sizes = (values[1:] + values[:-1]) / 2, np.abs(numbers.astype(np.float64))
    found = np.searchsorted(borders, sizes)
    is_tie = (found < last) & (sizes == borders[np.minimum(found, last - 1)])
    found = found + (is_tie & (found % 2 == 1))
    return np.asarray(found | (np.signbit(numbers) << 7), np.uint8)


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
