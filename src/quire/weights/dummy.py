"""Random weights for `load_format="dummy"`: to measure a model's speed without its checkpoint."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from math import prod

import numpy as np

from quire.errors import CheckpointError
from quire.program import Program
from quire.weights.store import HostTensor, WeightStore

_POOL_ITEMS = 1_048_583
"""A prime, so that the rows of a matrix differ."""


class DummyStore(WeightStore):
    """Every tensor of a program in bfloat16, small random numbers that depend on its name.

    The numbers are copied from one pool, which is faster than generating each tensor.
    """

    def __init__(self, program: Program, seed: int = 0) -> None:
        self._shapes = {part.name: part.shape for p in program.params() for part in p.parts}
        numbers = np.random.default_rng(seed).normal(0.0, 0.02, _POOL_ITEMS).astype(np.float32)
        self._pool = (numbers.view(np.uint32) >> 16).astype(np.uint16)

    def names(self) -> Iterable[str]:
        return self._shapes.keys()

    def get(self, name: str) -> HostTensor:
        shape = self._shapes.get(name)
        if shape is None:
            raise CheckpointError(f"the program has no tensor {name!r}")
        begin = zlib.crc32(name.encode()) % _POOL_ITEMS
        numbers = np.resize(np.roll(self._pool, -begin), prod(shape))
        return HostTensor(name, "BF16", shape, numbers.view(np.uint8), "dummy weights")

    def close(self) -> None:
        self._shapes = {}
