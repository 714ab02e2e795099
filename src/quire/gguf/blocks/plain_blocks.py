"""Values of blocks of 32 and 64 numbers with one scale: Q4_0 to Q8_0, IQ4_NL, MXFP4, NVFP4.

Each function converts blocks [n, bytes of a block] in uint8 to [n, numbers of a block] in float32,
with the same operations in the same order as gguf-py and ggml, so that the bits are the same.
Source: ggml/src/ggml-quants.c, `dequantize_row_*`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

IQ4_LEVELS = np.array(
    (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113), np.float32
)
FP4_LEVELS = np.array((0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12), np.float32)
"""Twice the values of E2M1; the scales are halved instead."""


def half(blocks: Bytes, begin: int) -> Floats:
    """Return the float16 at byte `begin` of each block, as float32 [n, 1]."""
    return np.ascontiguousarray(blocks[:, begin : begin + 2]).view(np.float16).astype(np.float32)


def nibbles(packed: Bytes) -> Bytes:
    """Split [n, b] bytes into [n, 2 b] codes: all low halves, then all high halves."""
    return np.concatenate([packed & np.uint8(15), packed >> np.uint8(4)], axis=1)


def _fifth_bits(blocks: Bytes, begin: int) -> Bytes:
    """Return [n, 32]: bit i of the 32 bits at byte `begin` of each block, as 16 or 0."""
    bits = np.unpackbits(blocks[:, begin : begin + 4], axis=1, bitorder="little")
    found: Bytes = bits << np.uint8(4)
    return found


def q4_0(blocks: Bytes) -> Floats:
    found: Floats = half(blocks, 0) * (nibbles(blocks[:, 2:]).astype(np.float32) - np.float32(8))
    return found


def q4_1(blocks: Bytes) -> Floats:
    return half(blocks, 0) * nibbles(blocks[:, 4:]).astype(np.float32) + half(blocks, 2)


def q5_0(blocks: Bytes) -> Floats:
    codes = nibbles(blocks[:, 6:]) | _fifth_bits(blocks, 2)
    found: Floats = half(blocks, 0) * (codes.astype(np.float32) - np.float32(16))
    return found


def q5_1(blocks: Bytes) -> Floats:
    codes = nibbles(blocks[:, 8:]) | _fifth_bits(blocks, 4)
    return half(blocks, 0) * codes.astype(np.float32) + half(blocks, 2)


def q8_0(blocks: Bytes) -> Floats:
    return blocks[:, 2:].view(np.int8).astype(np.float32) * half(blocks, 0)


def iq4_nl(blocks: Bytes) -> Floats:
    return half(blocks, 0) * IQ4_LEVELS[nibbles(blocks[:, 2:])]


def mxfp4(blocks: Bytes) -> Floats:
    """The scale is 2^(e - 128), half of the e8m0 value, because the levels are doubled."""
    exponent = blocks[:, :1].astype(np.uint32)
    small = np.uint32(0x00200000) << np.minimum(exponent, np.uint32(1))
    normal = np.maximum(exponent, np.uint32(1)) - np.uint32(1) << np.uint32(23)
    scale = np.where(exponent < 2, small, normal).view(np.float32)
    found: Floats = scale * FP4_LEVELS[nibbles(blocks[:, 1:])]
    return found


def nvfp4(blocks: Bytes) -> Floats:
    """Four groups of 16 numbers, each with an unsigned E4M3 scale. The scales are halved because
    the levels are doubled."""
    code = blocks[:, :4]
    exponent = (code >> np.uint8(3)).astype(np.int32) & 15
    fraction = (code & np.uint8(7)).astype(np.float64)
    raw = np.where(exponent == 0, fraction * 2.0**-9, (1 + fraction / 8) * 2.0 ** (exponent - 7.0))
    scale = np.where((code == 0) | (code == 0x7F), 0.0, raw * 0.5).astype(np.float32)
    packed = blocks[:, 4:].reshape(-1, 4, 8)
    codes = np.concatenate([packed & np.uint8(15), packed >> np.uint8(4)], axis=2)
    found: Floats = (scale[:, :, None] * FP4_LEVELS[codes]).reshape(len(blocks), 64)
    return found
