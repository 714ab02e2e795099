"""Random weights for `load_format="dummy"`: to measure a model's speed without its checkpoint.

Each matrix has the format that the program gives it: plain numbers, the groups of a quantised
checkpoint, or the blocks of a GGUF file. So the model needs as much memory and time as with
its checkpoint, but no file of that size.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from quire.errors import CheckpointError
from quire.gguf.block_types import BY_NAME, BlockType, block_values
from quire.models.quantised.block_formats import BLOCK_FORMATS
from quire.program import Program
from quire.program.values import GroupedFormat, WeightFormat
from quire.weights.quantised.groups import LEVELS
from quire.weights.store import HostTensor, WeightStore

Bytes = NDArray[np.uint8]

_DEVIATION = 0.02
"""Approximate standard deviation of the weights."""
_POOL_ITEMS = 1_048_583
"""Numbers in the pool of plain weights. It is a prime, so that the rows of a matrix differ."""
_POOL_WEIGHTS = 5 << 20
"""Weights in a pool of blocks. A matrix with at most this many weights is a view of the pool."""
_SOURCE = "dummy weights"

_TYPES: dict[GroupedFormat, BlockType] = {
    format: BY_NAME[name] for name, format in BLOCK_FORMATS.items()
}
_E4M3_OF_ONE = 0x38


class DummyStore(WeightStore):
    """Every tensor of a program, filled with small random numbers that depend on its name.

    The numbers are copied from pools of a few million numbers, which is faster than generating each
    tensor. The CPU backend packs one matrix of each shape and copies the result for the others.
    """

    def __init__(self, program: Program) -> None:
        self._parts = {
            part.name: (part.shape, param.format)
            for param in program.params()
            for part in param.parts
        }
        self._random = np.random.default_rng(0)
        numbers = self._random.normal(0.0, _DEVIATION, _POOL_ITEMS).astype(np.float32)
        self._pool = (numbers.view(np.uint32) >> 16).astype(np.uint16)
        self._blocks: dict[str, Bytes] = {}
        self._codes = self._random.integers(0, 256, _POOL_ITEMS, np.uint8)

    @property
    def is_made_up(self) -> bool:
        return True

    def names(self) -> Iterable[str]:
        return self._parts.keys()

    def get(self, name: str) -> HostTensor:
        """Return plain numbers or groups; groups with nested scales are expanded to float32."""
        shape, format = self._part(name)
        if not isinstance(format, GroupedFormat):
            numbers = np.resize(np.roll(self._pool, -_begin(name, _POOL_ITEMS)), prod(shape))
            return HostTensor(name, "BF16", shape, numbers.view(np.uint8), _SOURCE)
        if format.scale == "nested":
            found = self.stored(name)
            kind = _type_of(format)
            if kind is None:
                raise CheckpointError(f"{_SOURCE}: {name!r}: GGUF has no type for {format}")
            blocks = found.data.reshape(-1, kind.block_bytes)
            values = block_values(kind.name, blocks).reshape(-1)
            return HostTensor(name, "F32", shape, values.view(np.uint8), _SOURCE)
        data = self._grouped(name, shape, format)
        return HostTensor(name, "GROUPED", shape, data, _SOURCE, format=format)

    def stored(self, name: str) -> HostTensor:
        """Return blocks where GGUF has a type for the format, otherwise as `get`. Raises
        CheckpointError if a row does not consist of whole blocks."""
        shape, format = self._part(name)
        kind = _type_of(format)
        if kind is None or not isinstance(format, GroupedFormat):
            return self.get(name)
        if shape[-1] % kind.block_items:
            raise CheckpointError(
                f"{_SOURCE}: {name!r} has rows of {shape[-1]} numbers; {kind.name} requires a "
                f"multiple of {kind.block_items}; choose another type, such as Q8_0"
            )
        data = self._in_blocks(name, kind, prod(shape) // kind.block_items)
        return HostTensor(name, "BLOCKS", shape, data, _SOURCE, format=format, block_type=kind)

    def describe(self, name: str) -> HostTensor:
        return HostTensor(name, "BF16", self._part(name)[0], np.empty(0, np.uint8), _SOURCE)

    def close(self) -> None:
        self._parts = {}

    def _part(self, name: str) -> tuple[tuple[int, ...], WeightFormat | GroupedFormat]:
        found = self._parts.get(name)
        if found is None:
            raise CheckpointError(f"the program has no tensor {name!r}")
        return found

    def _in_blocks(self, name: str, kind: BlockType, count: int) -> Bytes:
        if kind.name not in self._blocks:
            self._blocks[kind.name] = _random_blocks(self._random, kind)
        pool = self._blocks[kind.name]
        if count <= len(pool):
            begin = _begin(name, len(pool) - count + 1)
            return pool[begin : begin + count].reshape(-1)
        turned = np.roll(pool, -_begin(name, len(pool)), axis=0)
        return np.resize(turned, (count, kind.block_bytes)).reshape(-1)

    def _grouped(self, name: str, shape: tuple[int, ...], format: GroupedFormat) -> Bytes:
        """Return codes, scales and the format's other arrays in the order of `Groups.to_bytes`.
        All matrices with the same number of columns have the same column order."""
        levels = LEVELS[format.table]
        finite = levels[np.isfinite(levels)]
        mean, spread = float(finite.mean()), float(finite.std())
        rows, depth = prod(shape[:-1]), shape[-1]
        count = rows * format.num_groups(depth)
        scale = _DEVIATION / spread
        codes = np.roll(self._codes, -_begin(name, _POOL_ITEMS)) % np.uint8(min(len(levels), 255))
        if format.table == "e4m3":
            codes[codes & 127 == 127] = 0
        dtype = np.float16 if format.scale == "f16" else np.float32

        def of_groups(number: float) -> Bytes:
            return np.full(count, number, dtype).view(np.uint8)

        is_divided = format.scale == "e4m3"
        scales = np.full(count, _E4M3_OF_ONE, np.uint8) if is_divided else of_groups(scale)
        parts = [np.resize(codes, prod(shape)), scales]
        if format.has_zeros:
            parts.append(np.resize(self._codes % np.uint8(4) + np.uint8(6), count))
        if format.has_minima:
            parts.append(of_groups(-scale * mean))
        if is_divided:
            parts.append(np.full(rows, 1 / scale, np.float32).view(np.uint8))
        if format.has_order:
            order = np.random.default_rng(0).permutation(depth).astype(np.int32)
            parts.append(order.view(np.uint8))
        return np.concatenate(parts)


def _begin(name: str, size: int) -> int:
    """Return an index below `size` that depends on the name."""
    return zlib.crc32(name.encode()) % size


def _type_of(format: WeightFormat | GroupedFormat) -> BlockType | None:
    if not isinstance(format, GroupedFormat):
        return None
    return _TYPES.get(replace(format, activation_bits=16, activation_blocks=False))


def _random_blocks(random: np.random.Generator, kind: BlockType) -> Bytes:
    """Return a pool of random blocks, [n, bytes of a block]."""
    count = _POOL_WEIGHTS // kind.block_items
    blocks = random.integers(0, 256, (count, kind.block_bytes), np.uint8)
    for at, given in {} if kind.held is None else kind.held.dummy.items():
        data = given if isinstance(given, bytes) else np.float16(given).tobytes()
        blocks[:, at : at + len(data)] = np.frombuffer(data, np.uint8)
    return blocks
