"""Random matrices in the blocks of a GGUF file, and what these blocks say, made the other way round
from how they are read: from codes and scales to bytes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quire.gguf.block_types import BLOCK_TYPES, BlockType
from quire.models.quantised.block_formats import BLOCK_FORMATS
from quire.weights.quantised.groups import TABLES, Groups

Bytes = NDArray[np.uint8]
BY_NAME: dict[str, BlockType] = {type.name: type for type in BLOCK_TYPES.values()}


def random_blocks(name: str, rows: int, depth: int, seed: int = 0) -> tuple[Bytes, Groups]:
    """[rows, blocks of a row, bytes], and the same numbers as groups with float32 scales."""
    random = np.random.default_rng(seed)
    format, kind = BLOCK_FORMATS[name], BY_NAME[name]
    count = rows * depth // kind.block_items
    groups = kind.block_items // format.group
    codes = random.integers(0, len(TABLES[format.table]), (count, kind.block_items), np.uint8)
    scale = random.normal(0, 0.01, count).astype(np.float16)
    minimum = random.normal(0, 0.01, count).astype(np.float16)
    low, high = (-128, 128) if name == "Q6_K" else (-32, 32) if name == "IQ4_XS" else (0, 64)
    inner = random.integers(low, high, (count, groups))
    inner_minima = random.integers(0, 64, (count, groups))
    scales = scale.astype(np.float32)[:, None] * np.ones((1, groups), np.float32)
    minima = minimum.astype(np.float32)[:, None] * np.ones((1, groups), np.float32)
    exponents = random.integers(118, 124, count).astype(np.uint8)
    fp8_scales = random.integers(0, 127, (count, groups), np.uint8)
    if name == "MXFP4":
        scales = np.exp2(exponents.astype(np.float32) - 128)[:, None]
    if format.scale == "nested":
        scales, minima = scales * inner.astype(np.float32), -minima * inner_minima
    halves = [scale.view(np.uint8).reshape(-1, 2), minimum.view(np.uint8).reshape(-1, 2)]
    parts: list[Bytes]
    if name in ("Q4_0", "IQ4_NL"):
        parts = [halves[0], _nibbles(codes, 32)]
    elif name == "Q4_1":
        parts = [*halves, _nibbles(codes, 32)]
    elif name == "Q5_0":
        parts = [halves[0], _top_bits(codes), _nibbles(codes & 15, 32)]
    elif name == "Q5_1":
        parts = [*halves, _top_bits(codes), _nibbles(codes & 15, 32)]
    elif name == "Q8_0":
        parts = [halves[0], codes ^ 128]
    elif name == "NVFP4":
        parts = [fp8_scales, _nibbles(codes, 16)]
    elif name == "MXFP4":
        parts = [exponents[:, None], _nibbles(codes, 32)]
    elif name == "Q4_K":
        parts = [*halves, _six_bits(inner, inner_minima), _nibbles(codes, 64)]
    elif name == "Q5_K":
        low_bits = codes
        fifth = (low_bits >> 4).reshape(count, 8, 32) << np.arange(8, dtype=np.uint8)[:, None]
        tops = fifth.sum(axis=1).astype(np.uint8)
        parts = [*halves, _six_bits(inner, inner_minima), tops, _nibbles(low_bits & 15, 64)]
    elif name == "Q6_K":
        six = codes
        pairs = (six >> 4).reshape(count, 2, 4, 32) << np.array([0, 2, 4, 6], np.uint8)[:, None]
        tops = pairs.sum(axis=2).astype(np.uint8).reshape(count, 64)
        signed = inner.astype(np.int8).view(np.uint8)
        parts = [_nibbles(six & 15, 128), tops, signed, halves[0]]
    else:  # IQ4_XS
        six_bits = (inner + 32).astype(np.uint16)
        tops = ((six_bits >> 4) << np.arange(0, 16, 2)).sum(axis=1).astype(np.uint16)
        lows = (six_bits & 15).astype(np.uint8)
        low_bytes = lows[:, ::2] | lows[:, 1::2] << 4
        parts = [halves[0], tops.view(np.uint8).reshape(-1, 2), low_bytes, _nibbles(codes, 32)]
    blocks = np.concatenate(parts, axis=1).astype(np.uint8).reshape(rows, -1, kind.block_bytes)
    shape = (rows, depth // format.group)
    if name == "NVFP4":
        halved = np.full(rows, 2, np.float32)
        codes = codes.reshape(rows, depth)
        return blocks, Groups(format, codes, fp8_scales.reshape(shape), divisors=halved)
    return blocks, Groups(
        format,
        codes.reshape(rows, depth),
        scales.astype(np.float32).reshape(shape),
        None,
        minima.astype(np.float32).reshape(shape) if format.has_minima else None,
    )


def _nibbles(codes: Bytes, span: int) -> Bytes:
    """Of each `span` codes the first half in the lower halves of the bytes."""
    halves = codes.reshape(len(codes), -1, 2, span // 2)
    packed: Bytes = (halves[:, :, 0] | halves[:, :, 1] << 4).reshape(len(codes), -1)
    return packed


def _top_bits(codes: Bytes) -> Bytes:
    return np.packbits(codes >> 4, axis=1, bitorder="little")


def _six_bits(scales: NDArray[np.int64], minima: NDArray[np.int64]) -> Bytes:
    """12 bytes: the first four of each in 6 bits, whose upper 2 have those of the others."""
    s, m = scales.astype(np.uint8), minima.astype(np.uint8)
    first = s[:, :4] | (s[:, 4:] >> 4) << 6
    second = m[:, :4] | (m[:, 4:] >> 4) << 6
    third = (s[:, 4:] & 15) | (m[:, 4:] & 15) << 4
    return np.concatenate([first, second, third], axis=1)
