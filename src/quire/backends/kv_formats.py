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

Floats = NDArray[np.float32]
Stored = tuple[NDArray[Any], ...]

_LIMIT = 127
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

    def decode(self, stored: Stored, head_dim: int) -> Floats:  # noqa: ARG002 (int8 needs it)
        return stored[0]


class Bfloat16KV(KVFormat):
    """Rounded to nearest, ties to even."""

    def fields(self, num_heads: int, head_dim: int) -> list[tuple[type[np.generic], int]]:
        return [(np.uint16, num_heads * head_dim)]

    def encode(self, rows: Floats) -> Stored:
        return (narrow_to_bfloat16(_flat(rows)),)

    def decode(self, stored: Stored, head_dim: int) -> Floats:  # noqa: ARG002 (int8 needs it)
        return widen_bfloat16(stored[0])


class Int8KV(KVFormat):
    """Symmetric, to nearest with ties to even: the largest number of a token and head becomes 127.

    The scale follows from that row alone. A NaN or an infinity makes it NaN.
    """

    def fields(self, num_heads: int, head_dim: int) -> list[tuple[type[np.generic], int]]:
        return [(np.int8, num_heads * head_dim), (np.float32, num_heads)]

    def encode(self, rows: Floats) -> Stored:
        largest = np.abs(rows).max(axis=-1)
        largest = np.where(np.isfinite(largest), largest, np.float32(np.nan))
        inverse = np.zeros_like(largest)
        np.divide(np.float32(_LIMIT), largest, out=inverse, where=largest >= _SMALLEST)
        # A row whose inverse is zero may hold NaN or infinity.
        known = np.where(inverse[..., None] > 0, rows, np.float32(0))
        integers = np.rint(known * inverse[..., None]).astype(np.int8)
        return _flat(integers), largest / np.float32(_LIMIT)

    def decode(self, stored: Stored, head_dim: int) -> Floats:
        integers, scales = stored
        rows = integers.reshape(*integers.shape[:-1], -1, head_dim).astype(np.float32)
        return _flat(rows * scales[..., None])


KV_FORMATS: dict[str, KVFormat] = {
    "float32": Float32KV(),
    "bfloat16": Bfloat16KV(),
    "int8": Int8KV(),
}


def kv_format(dtype: str) -> KVFormat:
    """Raises BackendError for an unknown name."""
    if dtype not in KV_FORMATS:
        raise BackendError(f"KV cache dtype {dtype!r} is not one of {', '.join(KV_FORMATS)}")
    return KV_FORMATS[dtype]


def _flat(rows: NDArray[Any]) -> NDArray[Any]:
    return rows.reshape(*rows.shape[:-2], -1)


def narrow_to_bfloat16(x: Floats) -> NDArray[np.uint16]:
    """The nearest bfloat16s, ties to even, as their bits. NaN stays NaN."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(x), 0x7FC0, rounded).astype(np.uint16)


def widen_bfloat16(bits: NDArray[np.uint16]) -> Floats:
    """The float32s with these bfloat16 bits."""
    widened: Floats = (bits.astype(np.uint32) << 16).view(np.float32)
    return widened
