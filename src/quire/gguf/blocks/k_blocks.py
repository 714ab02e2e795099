"""Values of blocks of 256 numbers with a scale for each group: Q2_K to Q6_K, IQ4_XS, TQ1_0, TQ2_0.

As in `plain_blocks`, the operations and their order are those of ggml and gguf-py.
"""

from __future__ import annotations

import numpy as np

from quire.gguf.blocks.plain_blocks import IQ4_LEVELS, Bytes, Floats, half

_TWO_BITS = np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)
_NIBBLES = np.array([0, 4], np.uint8).reshape(1, 1, 2, 1)
_BITS = np.arange(8, dtype=np.uint8).reshape(1, 1, 8, 1)


def q2_k(blocks: Bytes) -> Floats:
    """16 groups of 16 numbers. Scale and minimum of a group have 4 bits each."""
    n = len(blocks)
    scales = (half(blocks, 80) * (blocks[:, :16] & 15).astype(np.float32))[:, :, None]
    minima = (half(blocks, 82) * (blocks[:, :16] >> 4).astype(np.float32))[:, :, None]
    codes = (blocks[:, 16:80].reshape(n, 2, 1, 32) >> _TWO_BITS) & np.uint8(3)
    found: Floats = (scales * codes.reshape(n, 16, 16).astype(np.float32) - minima).reshape(n, 256)
    return found


def q3_k(blocks: Bytes) -> Floats:
    """16 groups of 16 numbers. Scales have 6 bits. The third bit of each code is stored separately
    and inverted."""
    n = len(blocks)
    low = nibble_rows(blocks[:, 96:104]).reshape(n, 16)
    high = (blocks[:, None, 104:108] >> _TWO_BITS[0]) & np.uint8(3)
    scales = (low | high.reshape(n, 16) << np.uint8(4)).astype(np.float32) - np.float32(32)
    codes = (blocks[:, 32:96].reshape(n, 2, 1, 32) >> _TWO_BITS) & np.uint8(3)
    bits = (blocks[:, :32].reshape(n, 1, 1, 32) >> _BITS) & np.uint8(1)
    levels = codes.reshape(n, 16, 16).astype(np.float32)
    levels -= (bits.reshape(n, 16, 16) ^ np.uint8(1)).astype(np.float32) * np.float32(4)
    found: Floats = ((half(blocks, 108) * scales)[:, :, None] * levels).reshape(n, 256)
    return found


def nibble_rows(packed: Bytes) -> Bytes:
    """Split [n, b] bytes into [n, 2, b] codes: the low halves, then the high halves."""
    return np.stack([packed & np.uint8(15), packed >> np.uint8(4)], axis=1)


def scales_and_minima(packed: Bytes) -> tuple[Floats, Floats]:
    """Unpack 12 bytes of a Q4_K or Q5_K block into 8 scales and 8 minima of 6 bits each."""
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = [first & np.uint8(63), third & np.uint8(15) | (first >> np.uint8(2)) & np.uint8(48)]
    minima = [second & np.uint8(63), third >> np.uint8(4) | (second >> np.uint8(2)) & np.uint8(48)]
    return (
        np.concatenate(scales, axis=1).astype(np.float32),
        np.concatenate(minima, axis=1).astype(np.float32),
    )


def q4_k(blocks: Bytes) -> Floats:
    """8 groups of 32 numbers."""
    n = len(blocks)
    codes = (blocks[:, 16:].reshape(n, 4, 1, 32) >> _NIBBLES) & np.uint8(15)
    return _with_minima(blocks, codes.reshape(n, 8, 32))


def q5_k(blocks: Bytes) -> Floats:
    """8 groups of 32 numbers. The fifth bits of group i are bit i of each of 32 bytes."""
    n = len(blocks)
    low = (blocks[:, 48:].reshape(n, 4, 1, 32) >> _NIBBLES) & np.uint8(15)
    high = (blocks[:, 16:48].reshape(n, 1, 1, 32) >> _BITS) & np.uint8(1)
    return _with_minima(blocks, low.reshape(n, 8, 32) | high.reshape(n, 8, 32) << np.uint8(4))


def _with_minima(blocks: Bytes, codes: Bytes) -> Floats:
    scales, minima = scales_and_minima(blocks[:, 4:16])
    scale = (half(blocks, 0) * scales)[:, :, None]
    minimum = (half(blocks, 2) * minima)[:, :, None]
    return (scale * codes.astype(np.float32) - minimum).reshape(len(blocks), 256)


def q6_k(blocks: Bytes) -> Floats:
    """16 groups of 16 numbers. Scales are signed bytes."""
    n = len(blocks)
    low = (blocks[:, :128].reshape(n, 2, 1, 64) >> _NIBBLES) & np.uint8(15)
    high = (blocks[:, 128:192].reshape(n, 2, 1, 32) >> _TWO_BITS) & np.uint8(3)
    codes = low.reshape(n, 8, 32) | high.reshape(n, 8, 32) << np.uint8(4)
    scales = (half(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32))[:, :, None]
    levels = codes.reshape(n, 16, 16).astype(np.float32) - np.float32(32)
    found: Floats = (scales * levels).reshape(n, 256)
    return found


def iq4_xs(blocks: Bytes) -> Floats:
    """8 groups of 32 numbers. Scales have 6 bits; the upper two are stored separately."""
    n = len(blocks)
    high_bits = np.ascontiguousarray(blocks[:, 2:4]).view(np.uint16)
    high = (high_bits >> np.arange(0, 16, 2, dtype=np.uint16)).astype(np.uint8) & np.uint8(3)
    low = nibble_rows(blocks[:, 4:8]).transpose(0, 2, 1).reshape(n, 8)
    scales = (low | high << np.uint8(4)).astype(np.float32) - np.float32(32)
    codes = (blocks[:, 8:].reshape(n, 8, 1, 16) >> _NIBBLES) & np.uint8(15)
    levels = IQ4_LEVELS[codes.reshape(n, 8, 32)]
    found: Floats = ((half(blocks, 0) * scales)[:, :, None] * levels).reshape(n, 256)
    return found


def tq1_0(blocks: Bytes) -> Floats:
    """A byte holds five ternary digits as a fraction of 256; each of the last four bytes holds
    four digits."""
    n = len(blocks)
    powers = np.array([1, 3, 9, 27, 81], np.uint8).reshape(1, 5, 1)
    parts = [
        (blocks[:, None, :32] * powers).reshape(n, -1),
        (blocks[:, None, 32:48] * powers).reshape(n, -1),
        (blocks[:, None, 48:52] * powers[:, :4]).reshape(n, -1),
    ]
    digits = (np.concatenate(parts, axis=1).astype(np.uint16) * np.uint16(3)) >> np.uint16(8)
    found: Floats = half(blocks, 52) * (digits.astype(np.float32) - np.float32(1))
    return found


def tq2_0(blocks: Bytes) -> Floats:
    codes = (blocks[:, :64].reshape(-1, 2, 1, 32) >> _TWO_BITS) & np.uint8(3)
    levels = codes.reshape(len(blocks), 256).astype(np.float32) - np.float32(1)
    found: Floats = half(blocks, 64) * levels
    return found
