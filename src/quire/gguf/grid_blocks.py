"""Values of blocks whose codes are indices of grid points: the IQ1, IQ2 and IQ3 types.

Each function converts blocks [n, bytes of a block] in uint8 to [n, numbers of a block] in float32,
with the operations of gguf-py's `dequantize` in the same order, so that the bits are the same. It
takes a half to a third of the time, of which loading such a file consists.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

_BYTE_BITS = np.arange(8, dtype=np.uint8)
_SIGN_SHIFTS = np.array([0, 7, 14, 21], np.uint32)
_DELTA = np.float32(0.125)
"""The IQ1 types add or subtract this from each number of a grid point."""


@cache
def _grid(name: str) -> Floats:
    """Return the grid points of a type, [points, 4 or 8]."""
    from gguf import quants

    kind = getattr(quants, "IQ1_S" if name == "IQ1_M" else name)
    kind.init_grid()
    found: Floats = kind.grid
    return found.reshape(-1, found.shape[-1])


def _half(blocks: Bytes) -> Floats:
    """Return the float16 at the start of each block, as float32 [n, 1]."""
    return np.ascontiguousarray(blocks[:, :2]).view(np.float16).astype(np.float32)


def _words(blocks: Bytes, begin: int, end: int) -> NDArray[np.uint32]:
    return np.ascontiguousarray(blocks[:, begin:end]).view(np.uint32)


def _shorts(blocks: Bytes, begin: int, end: int) -> NDArray[np.uint16]:
    return np.ascontiguousarray(blocks[:, begin:end]).view(np.uint16)


def _signs(patterns: Bytes) -> Floats:
    """Return the bits of each byte as signs, [..., 8]: 0 gives 1, and 1 gives -1."""
    bits = (patterns[..., None] >> _BYTE_BITS) & np.uint8(1)
    found: Floats = np.float32(1) - bits.astype(np.float32) * np.float32(2)
    return found


def _even_signs(sevens: NDArray[np.integer]) -> Floats:
    """Like `_signs`, for 7 bits; the eighth bit makes the number of ones even."""
    seven = sevens.astype(np.uint8)
    parity = seven ^ seven >> np.uint8(4)
    parity ^= parity >> np.uint8(2)
    parity ^= parity >> np.uint8(1)
    return _signs(seven | (parity & np.uint8(1)) << np.uint8(7))


def _interleaved_nibbles(packed: Bytes) -> Bytes:
    """Split [n, b] bytes into [n, 2 b] codes: the low half of each byte before its high half."""
    halves = np.stack([packed & np.uint8(15), packed >> np.uint8(4)], axis=2)
    return halves.reshape(len(packed), -1)


def _iq2_xxs(blocks: Bytes) -> Floats:
    n = len(blocks)
    words = _words(blocks, 2, 66).reshape(n, 8, 2)
    factor = np.float32(0.5) + (words[..., 1] >> np.uint32(28)).astype(np.float32)
    scale = _half(blocks) * factor * np.float32(0.25)
    signs = _even_signs((words[..., 1:] >> _SIGN_SHIFTS) & np.uint32(127))
    points = _grid("IQ2_XXS")[np.ascontiguousarray(words[..., 0]).view(np.uint8).reshape(n, 8, 4)]
    found: Floats = (scale[:, :, None, None] * points * signs).reshape(n, 256)
    return found


def _iq2_xs(blocks: Bytes) -> Floats:
    n = len(blocks)
    codes = _shorts(blocks, 2, 66).reshape(n, 16, 2)
    factor = np.float32(0.5) + _interleaved_nibbles(blocks[:, 66:]).astype(np.float32)
    scale = _half(blocks) * factor * np.float32(0.25)
    signs = _even_signs(codes >> np.uint16(9))
    points = _grid("IQ2_XS")[codes & np.uint16(511)]
    found: Floats = (scale[:, :, None, None] * points * signs).reshape(n, 256)
    return found


def _iq2_s(blocks: Bytes) -> Floats:
    n = len(blocks)
    factor = np.float32(0.5) + _interleaved_nibbles(blocks[:, 74:]).astype(np.float32)
    scale = _half(blocks) * factor * np.float32(0.25)
    signs = _signs(blocks[:, 34:66].reshape(n, 16, 2))
    high = (blocks[:, 66:74, None] >> np.array([0, 2, 4, 6], np.uint8)) & np.uint8(3)
    codes = blocks[:, 2:34].astype(np.uint16) | high.reshape(n, 32).astype(np.uint16) << 8
    points = _grid("IQ2_S")[codes.reshape(n, 16, 2)]
    found: Floats = (scale[:, :, None, None] * points * signs).reshape(n, 256)
    return found


def _iq3_xxs(blocks: Bytes) -> Floats:
    n = len(blocks)
    words = _words(blocks, 66, 98)
    factor = np.float32(0.5) + (words >> np.uint32(28)).astype(np.float32)
    scale = _half(blocks) * factor * np.float32(0.5)
    signs = _even_signs((words[..., None] >> _SIGN_SHIFTS) & np.uint32(127))
    points = _grid("IQ3_XXS")[blocks[:, 2:66]].reshape(n, 8, 4, 8)
    found: Floats = (scale[:, :, None, None] * points * signs).reshape(n, 256)
    return found


def _iq3_s(blocks: Bytes) -> Floats:
    n = len(blocks)
    factor = _interleaved_nibbles(blocks[:, 106:]).astype(np.float32) * np.float32(2)
    scale = _half(blocks) * (np.float32(1) + factor)
    signs = _signs(blocks[:, 74:106].reshape(n, 8, 4))
    high = np.unpackbits(blocks[:, 66:74], axis=1, bitorder="little").astype(np.uint16)
    points = _grid("IQ3_S")[blocks[:, 2:66].astype(np.uint16) | high << 8].reshape(n, 8, 4, 8)
    found: Floats = (scale[:, :, None, None] * points * signs).reshape(n, 256)
    return found


def _iq1_s(blocks: Bytes) -> Floats:
    n = len(blocks)
    high = _shorts(blocks, 34, 50)
    factor = ((high >> np.uint16(12)) & np.uint16(7)).astype(np.float32) * np.float32(2)
    scale = _half(blocks) * (factor + np.float32(1))
    delta = np.where(high & np.uint16(0x8000), -_DELTA, _DELTA)
    bits = (high[..., None] >> np.array([0, 3, 6, 9], np.uint16)) & np.uint16(7)
    codes = blocks[:, 2:34].astype(np.uint16).reshape(n, 8, 4) | bits << np.uint16(8)
    points = _grid("IQ1_S")[codes] + delta[:, :, None, None]
    found: Floats = (scale[:, :, None, None] * points).reshape(n, 256)
    return found


def _iq1_m(blocks: Bytes) -> Floats:
    """The upper four bits of four 16-bit words form the float16 scale."""
    n = len(blocks)
    words = _shorts(blocks, 48, 56)
    quarters = (words & np.uint16(0xF000)) >> np.array([12, 8, 4, 0], np.uint16)
    scale = np.bitwise_or.reduce(quarters, axis=1).view(np.float16).astype(np.float32)
    factors = (words[..., None] >> np.array([0, 3, 6, 9], np.uint16)) & np.uint16(7)
    scales = scale[:, None] * (factors.reshape(n, 16).astype(np.float32) * 2 + np.float32(1))
    high = _interleaved_nibbles(blocks[:, 32:48]).astype(np.uint16)
    delta = np.where(high & np.uint16(8), -_DELTA, _DELTA).reshape(n, 16, 2, 1)
    codes = blocks[:, :32].astype(np.uint16) | (high & np.uint16(7)) << np.uint16(8)
    points = _grid("IQ1_M")[codes].reshape(n, 16, 2, 8) + delta
    found: Floats = (scales[:, :, None, None] * points).reshape(n, 256)
    return found


GRID_TYPES: dict[str, Callable[[Bytes], Floats]] = {
    "IQ2_XXS": _iq2_xxs, "IQ2_XS": _iq2_xs, "IQ2_S": _iq2_s, "IQ3_XXS": _iq3_xxs,
    "IQ3_S": _iq3_s, "IQ1_S": _iq1_s, "IQ1_M": _iq1_m,
}  # fmt: skip
"""By the name of the type."""
