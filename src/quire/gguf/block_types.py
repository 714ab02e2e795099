"""`BLOCK_TYPES`: everything that Quire knows of each type of GGUF tensors, in one table.

To hold another type without expanding it, give its row a `HeldBlocks`, and add its layout to
`native/src/linear/packing/gguf_blocks.cpp`. Source: ggml/src/ggml-common.h; the codes are those of
`enum ggml_type` in ggml/include/ggml.h.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from quire.gguf.grid_blocks import GRID_TYPES, Bytes, Floats

_CHUNK_BYTES = 1 << 18
"""Bytes of blocks that are decoded at a time, so that their values stay in the caches."""


@dataclass(frozen=True, slots=True)
class HeldBlocks:
    """The format in which a type's numbers are held without rounding: see `GroupedFormat`."""

    table: Literal["s4", "u4", "s5", "u5", "s6", "s8", "iq4", "e2m1"]
    group: int
    scale: Literal["f16", "f32", "nested", "e4m3"]
    dummy: dict[int, float | bytes]
    """Values of a block of dummy weights at some of its bytes: a float16, or bytes. All other bytes
    are random. The values have about the deviation of dummy weights, and a mean of about 0."""
    has_minima: bool = False


@dataclass(frozen=True, slots=True)
class BlockType:
    """A tensor type. A row is a whole number of blocks."""

    code: int
    """The number in the file."""
    name: str
    block_items: int
    block_bytes: int
    held: HeldBlocks | None = None
    """None: weights of this type are expanded while loading."""
    is_of_weights: bool = True


_TYPES = (
    BlockType(0, "F32", 1, 4),
    BlockType(1, "F16", 1, 2),
    BlockType(2, "Q4_0", 32, 18, HeldBlocks("s4", 32, "f16", {0: 4e-3})),
    BlockType(3, "Q4_1", 32, 20,
        HeldBlocks("u4", 32, "f16", {0: 4e-3, 2: -3e-2}, has_minima=True)),
    BlockType(6, "Q5_0", 32, 22, HeldBlocks("s5", 32, "f16", {0: 2e-3})),
    BlockType(7, "Q5_1", 32, 24,
        HeldBlocks("u5", 32, "f16", {0: 2e-3, 2: -3.1e-2}, has_minima=True)),
    BlockType(8, "Q8_0", 32, 34, HeldBlocks("s8", 32, "f16", {0: 2.7e-4})),
    BlockType(10, "Q2_K", 256, 84),
    BlockType(11, "Q3_K", 256, 110),
    BlockType(12, "Q4_K", 256, 144,
        HeldBlocks("u4", 32, "nested", {0: 1.2e-4, 2: 9e-4}, has_minima=True)),
    BlockType(13, "Q5_K", 256, 176,
        HeldBlocks("u5", 32, "nested", {0: 6e-5, 2: 9.3e-4}, has_minima=True)),
    BlockType(14, "Q6_K", 256, 210, HeldBlocks("s6", 16, "nested", {208: 1.5e-5})),
    BlockType(16, "IQ2_XXS", 256, 66),
    BlockType(17, "IQ2_XS", 256, 74),
    BlockType(18, "IQ3_XXS", 256, 98),
    BlockType(19, "IQ1_S", 256, 50),
    BlockType(20, "IQ4_NL", 32, 18, HeldBlocks("iq4", 32, "f16", {0: 3e-4})),
    BlockType(21, "IQ3_S", 256, 110),
    BlockType(22, "IQ2_S", 256, 82),
    BlockType(23, "IQ4_XS", 256, 136, HeldBlocks("iq4", 32, "nested", {0: 1.5e-5})),
    BlockType(24, "I8", 1, 1, is_of_weights=False),
    BlockType(25, "I16", 1, 2, is_of_weights=False),
    BlockType(26, "I32", 1, 4, is_of_weights=False),
    BlockType(27, "I64", 1, 8, is_of_weights=False),
    BlockType(28, "F64", 1, 8),
    BlockType(29, "IQ1_M", 256, 56),
    BlockType(30, "BF16", 1, 2),
    BlockType(34, "TQ1_0", 256, 54),
    BlockType(35, "TQ2_0", 256, 66),
    # 2^(120 - 128) times 5, which the doubled levels are about.
    BlockType(39, "MXFP4", 32, 17, HeldBlocks("e2m1", 32, "f32", {0: bytes([120])})),
    # 3 * 2^-9, halved, times 6 likewise.
    BlockType(40, "NVFP4", 64, 36, HeldBlocks("e2m1", 16, "e4m3", {0: bytes([3] * 4)})),
)  # fmt: skip
"""Types that exist only within computations are left out, and so refused."""
BLOCK_TYPES: dict[int, BlockType] = {kind.code: kind for kind in _TYPES}
"""By the number in the file."""
BY_NAME: dict[str, BlockType] = {kind.name: kind for kind in _TYPES}


def block_values(type_name: str, blocks: Bytes) -> Floats:
    """[n, numbers of a block] in float32, of [n, bytes of a block], of a type of weights.

    The bits are those of gguf-py's `dequantize`. A scale that is not finite gives values that are
    not finite, without an error: packing the weights reports them.
    """
    decode = _PLAIN.get(type_name) or GRID_TYPES.get(type_name) or _by_gguf_py(type_name)
    step = max(1, _CHUNK_BYTES // max(1, blocks.shape[1]))
    found = np.empty((len(blocks), BY_NAME[type_name].block_items), np.float32)
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        for begin in range(0, len(blocks), step):
            found[begin : begin + step] = decode(np.ascontiguousarray(blocks[begin : begin + step]))
    return found


_PLAIN: dict[str, Callable[[Bytes], Floats]] = {
    "F32": lambda data: data.view(np.float32),
    "F64": lambda data: data.view(np.float64).astype(np.float32),
    "F16": lambda data: data.view(np.float16).astype(np.float32),
    "BF16": lambda data: (data.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32),
}


def _by_gguf_py(type_name: str) -> Callable[[Bytes], Floats]:
    from gguf import GGMLQuantizationType, quants  # rarely needed, and takes a tenth of a second

    kind = GGMLQuantizationType[type_name]

    def decode(blocks: Bytes) -> Floats:
        row = blocks.reshape(1, -1)  # it would divide several rows into small groups
        found: Floats = quants.dequantize(row, kind)
        return found.reshape(len(blocks), -1)

    return decode
