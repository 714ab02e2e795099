"""Blocks of GGUF types as codes, scales and minima, without rounding.

Source of the layouts: ggml/src/ggml-common.h, and `dequantize_row_*` in ggml/src/ggml-quants.c.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.errors import BackendError
from quire.gguf.block_types import BlockType
from quire.weights.quantised.float_tables import E4M3

Bytes = NDArray[Any]
"""Arrays of uint8."""
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Parts:
    """The numbers of n blocks."""

    codes: Bytes
    """[n, ...]; as many as a block has."""
    scales: NDArray[Any]
    """[n, groups of a block], or [n, 1] if they are nested."""
    minima: Floats | None = None
    subs: NDArray[Any] | None = None
    """[n, groups of a block]: signed bytes, of which a group's scale is a multiple."""
    min_subs: NDArray[Any] | None = None

    def named(self, rows: int) -> dict[str, NDArray[Any]]:
        """The arrays that there are, with the numbers of each of some rows."""
        arrays = {
            "codes": self.codes, "scales": self.scales, "minima": self.minima, "subs": self.subs,
            "min_subs": self.min_subs,
        }  # fmt: skip
        return {name: one.reshape(rows, -1) for name, one in arrays.items() if one is not None}


def parts_of_blocks(data: Bytes, kind: BlockType) -> Parts:
    """The numbers of blocks. Raises BackendError for a type that is not known here."""
    read = _READERS.get(kind.name)
    if read is None:
        raise BackendError(f"the CUDA backend has no weights of the GGUF type {kind.name}")
    return read(data.reshape(-1, kind.block_bytes))


def _halves(blocks: Bytes, begin: int, end: int) -> Bytes:
    """Bytes as codes: all low halves, then all high ones."""
    own = blocks[:, begin:end]
    return np.concatenate([own & 15, own >> 4], axis=1)


def _float16(blocks: Bytes, at: int) -> Floats:
    """[n, 1]."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16).astype(np.float32)


def _q4_0(blocks: Bytes) -> Parts:
    return Parts(_halves(blocks, 2, 18), _float16(blocks, 0))


def _q4_1(blocks: Bytes) -> Parts:
    return Parts(_halves(blocks, 4, 20), _float16(blocks, 0), _float16(blocks, 2))


def _fifth_bits(blocks: Bytes, at: int) -> Bytes:
    bits = np.unpackbits(blocks[:, at : at + 4], axis=1, bitorder="little")
    return bits << 4


def _q5_0(blocks: Bytes) -> Parts:
    return Parts(_halves(blocks, 6, 22) | _fifth_bits(blocks, 2), _float16(blocks, 0))


def _q5_1(blocks: Bytes) -> Parts:
    codes = _halves(blocks, 8, 24) | _fifth_bits(blocks, 4)
    return Parts(codes, _float16(blocks, 0), _float16(blocks, 2))


def _q8_0(blocks: Bytes) -> Parts:
    return Parts(blocks[:, 2:] ^ 128, _float16(blocks, 0))


def _with_scales_of_k(codes: Bytes, blocks: Bytes) -> Parts:
    """With scales and minima of the eight groups of Q4_K and Q5_K, 6 bits each."""
    low, high, mixed = (blocks[:, at : at + 4] for at in (4, 8, 12))
    scales = np.concatenate([low & 63, mixed & 15 | low >> 6 << 4], axis=1)
    minima = np.concatenate([high & 63, mixed >> 4 | high >> 6 << 4], axis=1)
    return Parts(codes, _float16(blocks, 0), -_float16(blocks, 2), scales, minima)


def _by_32(blocks: Bytes, begin: int) -> Bytes:
    """256 codes: of each 32 bytes the low halves, then the high ones."""
    own = blocks[:, begin : begin + 128].reshape(-1, 4, 1, 32)
    return np.concatenate([own & 15, own >> 4], axis=2).reshape(-1, 8, 32)


def _q4_k(blocks: Bytes) -> Parts:
    return _with_scales_of_k(_by_32(blocks, 16), blocks)


def _q5_k(blocks: Bytes) -> Parts:
    shifts = np.arange(8, dtype=np.uint8)[:, None]
    fifth = blocks[:, None, 16:48] >> shifts & 1
    return _with_scales_of_k(_by_32(blocks, 48) | fifth << 4, blocks)


def _q6_k(blocks: Bytes) -> Parts:
    low = blocks[:, :128].reshape(-1, 2, 1, 64)
    low = np.concatenate([low & 15, low >> 4], axis=2).reshape(-1, 2, 4, 32)
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts & 3
    subs = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8)
    return Parts(low | high << 4, _float16(blocks, 208), subs=subs)


def _iq4_xs(blocks: Bytes) -> Parts:
    high = np.ascontiguousarray(blocks[:, 2:4]).view(np.uint16) >> np.arange(0, 16, 2) & 3
    low = np.repeat(blocks[:, 4:8], 2, axis=1) >> np.tile([0, 4], 4).astype(np.uint8) & 15
    subs = (low | high << 4).astype(np.int8) - np.int8(32)
    own = blocks[:, 8:].reshape(-1, 8, 1, 16)
    codes = np.concatenate([own & 15, own >> 4], axis=2)
    return Parts(codes, _float16(blocks, 0), subs=subs)


def _mxfp4(blocks: Bytes) -> Parts:
    exponents = blocks[:, :1].astype(np.int32) - 128
    return Parts(_halves(blocks, 1, 17), np.ldexp(np.float32(1), exponents))


def _nvfp4(blocks: Bytes) -> Parts:
    own = blocks[:, 4:].reshape(-1, 4, 1, 8)
    codes = np.concatenate([own & 15, own >> 4], axis=2)
    return Parts(codes, E4M3[blocks[:, :4]] / np.float32(2))


_READERS: dict[str, Callable[[Bytes], Parts]] = {
    "Q4_0": _q4_0, "Q4_1": _q4_1, "Q5_0": _q5_0, "Q5_1": _q5_1, "Q8_0": _q8_0, "Q4_K": _q4_k,
    "Q5_K": _q5_k, "Q6_K": _q6_k, "IQ4_NL": _q4_0, "IQ4_XS": _iq4_xs, "MXFP4": _mxfp4,
    "NVFP4": _nvfp4,
}  # fmt: skip
