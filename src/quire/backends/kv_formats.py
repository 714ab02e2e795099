"""Storage of keys and values in each number format of the KV cache: the specification.

A format gives the arrays of K, or of V, of a layer, each [num_blocks, block_size, ...], and turns
rows into what they hold and back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.errors import BackendError
from quire.units import ceil_div
from quire.weights.quantised.float_tables import E4M3, float8_codes

Floats = NDArray[np.float32]
Stored = tuple[NDArray[Any], ...]

_STEPS_LIMIT = 127.9
"""The steps end at 128. The largest number stays below, so it is in the last step."""
_PADDING = 32
"""A head is padded with zeros to a multiple of it before it is rotated."""
_SMALLEST = np.float32(1e-30)
"""Below this a row counts as zeros: 127 divided by it must be a number."""


class KVFormat(ABC):
    """Stateless; rows are [..., K, H]."""

    @abstractmethod
    def fields(self, num_heads: int, head_dim: int) -> list[tuple[type[np.generic], int]]:
        """Number type and numbers a token, of each array."""

    @abstractmethod
    def encode(self, rows: Floats) -> Stored:
        """Rows as stored: [..., numbers a token] for each array."""

    @abstractmethod
    def decode(self, stored: Stored, head_dim: int) -> Floats:
        """The numbers that are multiplied: [..., K * H]."""


class Float32KV(KVFormat):
    """Keys and values as they were computed, in float32."""

    def fields(self, num_heads: int, head_dim: int) -> list[tuple[type[np.generic], int]]:
        return [(np.float32, num_heads * head_dim)]

    def encode(self, rows: Floats) -> Stored:
        return (_flat(rows),)

    def decode(self, stored: Stored, head_dim: int) -> Floats:  # noqa: ARG002 (integers need it)
        return stored[0]


class Bfloat16KV(KVFormat):
    """Rounded to nearest, ties to even."""

    def fields(self, num_heads: int, head_dim: int) -> list[tuple[type[np.generic], int]]:
        return [(np.uint16, num_heads * head_dim)]

    def encode(self, rows: Floats) -> Stored:
        return (narrow_to_bfloat16(_flat(rows)),)

    def decode(self, stored: Stored, head_dim: int) -> Floats:  # noqa: ARG002 (integers need it)
        return widen_bfloat16(stored[0])


class ScaledKV(KVFormat):
    """Numbers of 8 bits, with a scale for each token and head: the largest number becomes the
    largest code.

    The scale follows from that row alone. A NaN or an infinity makes it NaN.
    """

    largest: float

    @abstractmethod
    def codes(self, rows: Floats) -> NDArray[np.int8]:
        """The codes of the nearest numbers, ties to even; rows are from -largest to largest."""

    @abstractmethod
    def numbers(self, codes: NDArray[np.int8]) -> Floats:
        """The numbers of codes."""

    def fields(self, num_heads: int, head_dim: int) -> list[tuple[type[np.generic], int]]:
        return [(np.int8, num_heads * head_dim), (np.float32, num_heads)]

    def encode(self, rows: Floats) -> Stored:
        inverse, scales = _scales(rows, self.largest)
        # A row whose inverse is zero may hold NaN or infinity.
        known = np.where(inverse > 0, rows, np.float32(0))
        return _flat(self.codes(known * inverse)), scales

    def decode(self, stored: Stored, head_dim: int) -> Floats:
        codes, scales = stored
        rows = self.numbers(codes.reshape(*codes.shape[:-1], -1, head_dim))
        return _flat(rows * scales[..., None])


class Int8KV(ScaledKV):
    """Whole numbers from -127 to 127."""

    largest = 127

    def codes(self, rows: Floats) -> NDArray[np.int8]:
        return np.rint(rows).astype(np.int8)

    def numbers(self, codes: NDArray[np.int8]) -> Floats:
        return codes.astype(np.float32)


class Float8KV(ScaledKV):
    """8-bit floats with 3 bits of fraction (E4M3), up to 448."""

    largest = 448

    def codes(self, rows: Floats) -> NDArray[np.int8]:
        return float8_codes(rows, "fp8_e4m3").view(np.int8)

    def numbers(self, codes: NDArray[np.int8]) -> Floats:
        return E4M3[codes.view(np.uint8)]


class RotatedKV(KVFormat):
    """Equal steps from the negative of a token and head's largest number to that number, once the
    head has been rotated: padded with zeros to a multiple of 32, and multiplied by a Hadamard
    matrix for each of the powers of two that make up its size.

    The codes lie bit by bit. A NaN or an infinity makes the head NaN.
    """

    def __init__(self, bits: int) -> None:
        self._bits = bits
        self._step = np.float32(256 >> bits)

    def fields(self, num_heads: int, head_dim: int) -> list[tuple[type[np.generic], int]]:
        return [
            (np.uint8, num_heads * _padded(head_dim) * self._bits // 8),
            (np.float32, num_heads),
        ]

    def encode(self, rows: Floats) -> Stored:
        rotated = _rotated(rows)
        inverse, scales = _scales(rotated, _STEPS_LIMIT)
        # A row whose inverse is zero may hold NaN or infinity.
        known = np.where(inverse > 0, rotated, np.float32(0))
        codes = np.rint(known * (inverse / self._step) - np.float32(0.5)).astype(np.int8)
        bits = _flat(codes)[..., None] >> np.arange(self._bits, dtype=np.int8) & 1
        return np.packbits(_flat(bits.astype(np.uint8)), axis=-1), scales

    def decode(self, stored: Stored, head_dim: int) -> Floats:
        packed, scales = stored
        bits = np.unpackbits(packed, axis=-1).reshape(*scales.shape, -1, self._bits)
        last = self._bits - 1
        worth = np.array([*(1 << bit for bit in range(last)), -(1 << last)], np.float32)
        numbers = ((bits * worth).sum(axis=-1) + np.float32(0.5)) * self._step
        return _flat(_rotated(numbers * scales[..., None])[..., :head_dim])


KV_FORMATS: dict[str, tuple[KVFormat, KVFormat]] = {
    "float32": (Float32KV(), Float32KV()),
    "bfloat16": (Bfloat16KV(), Bfloat16KV()),
    "int8": (Int8KV(), Int8KV()),
    "fp8": (Float8KV(), Float8KV()),
    "int4": (RotatedKV(5), RotatedKV(4)),
}
"""The formats of K and of V, by the dtype of the cache."""


def kv_formats(dtype: str) -> tuple[KVFormat, KVFormat]:
    """Raises BackendError for an unknown name."""
    if dtype not in KV_FORMATS:
        raise BackendError(f"KV cache dtype {dtype!r} is not one of {', '.join(KV_FORMATS)}")
    return KV_FORMATS[dtype]


def _flat(rows: NDArray[Any]) -> NDArray[Any]:
    return rows.reshape(*rows.shape[:-2], -1)


def _scales(rows: Floats, limit: float) -> tuple[Floats, Floats]:
    """The factors [..., 1] by which the numbers of each row are multiplied, so that the largest
    becomes `limit`, and the value of one of the results [...]."""
    largest = np.abs(rows).max(axis=-1)
    largest = np.where(np.isfinite(largest), largest, np.float32(np.nan))
    inverse = np.zeros_like(largest)
    np.divide(np.float32(limit), largest, out=inverse, where=largest >= _SMALLEST)
    return inverse[..., None], largest / np.float32(limit)


def _padded(head_dim: int) -> int:
    return ceil_div(head_dim, _PADDING) * _PADDING


def _rotated(rows: Floats) -> Floats:
    """The padded rows times a symmetric matrix that is its own inverse. The order of the sums is
    part of the format: neighbours first, then numbers at twice the distance."""
    *before, dim = rows.shape
    rotated = np.zeros((*before, _padded(dim)), np.float32)
    rotated[..., :dim] = rows
    first = 0
    while left := rotated.shape[-1] - first:
        size = 1 << left.bit_length() - 1
        part = rotated[..., first : first + size]
        for stride in (1 << bit for bit in range(size.bit_length() - 1)):
            pairs = part.reshape(*before, -1, 2, stride)
            with np.errstate(invalid="ignore", over="ignore"):
                both = [pairs[..., 0, :] + pairs[..., 1, :], pairs[..., 0, :] - pairs[..., 1, :]]
            part = np.stack(both, axis=-2).reshape(*before, size)
        rotated[..., first : first + size] = part * (1 / np.sqrt(np.float32(size)))
        first += size
    return rotated


def narrow_to_bfloat16(x: Floats) -> NDArray[np.uint16]:
    """The nearest bfloat16s, ties to even, as their bits. NaN stays NaN."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(x), 0x7FC0, rounded).astype(np.uint16)


def widen_bfloat16(bits: NDArray[np.uint16]) -> Floats:
    """The float32s with these bfloat16 bits."""
    widened: Floats = (bits.astype(np.uint32) << 16).view(np.float32)
    return widened
