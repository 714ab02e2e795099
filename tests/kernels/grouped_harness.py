"""Random matrices in groups of codes, and programs of one product with them."""

from __future__ import annotations

import platform
from collections.abc import Iterable

import numpy as np
from gguf_blocks import BY_NAME
from harness import Body, Floats, Weights, batch_of, logits_of, make_seqs
from numpy.typing import NDArray

from quire.backends.base import CompileOptions, Dtype, KVCacheSpec
from quire.backends.cpu import CpuBackend
from quire.program import GroupedFormat, Linear, Op, Param, Program, Tensor, Value, keep_all
from quire.weights import HostTensor, WeightStore
from quire.weights.quantised.groups import LEVELS, Groups

SHAPES = [(16, 16), (80, 33), (320, 160), (1037, 50), (2560, 40)]
"""(K, N)."""
LENGTHS = [1, 3, 17, 70]


def random_groups(format: GroupedFormat, n: int, k: int, seed: int = 0) -> Groups:
    random = np.random.default_rng(seed)
    groups = (n, format.num_groups(k))
    in_bytes = format.scale == "e4m3"
    scales = random.normal(0, 0.01, groups).astype(np.float32)
    return Groups(
        format,
        random.integers(0, len(LEVELS[format.table]), (n, k), np.uint8),
        random.integers(0, 127, groups, np.uint8) if in_bytes else scales,
        random.integers(0, 16, groups, np.uint8) if format.has_zeros else None,
        random.normal(0, 0.01, groups).astype(np.float32) if format.has_minima else None,
        random.uniform(1e3, 1e4, n).astype(np.float32) if in_bytes else None,
        np.random.default_rng(0).permutation(k).astype(np.int32) if format.has_order else None,
    )


class GroupedStore(WeightStore):
    """Arrays, and one matrix in groups."""

    def __init__(self, weights: Weights, groups: dict[str, Groups]) -> None:
        self.weights, self._groups = weights, groups
        self.blocks: dict[str, tuple[str, NDArray[np.uint8]]] = {}
        """The type and the blocks of those that are stored so."""

    def names(self) -> Iterable[str]:
        return [*self.weights.arrays, *self._groups]

    def get(self, name: str) -> HostTensor:
        if name in self.blocks:
            of = self._groups[name]
            kind, data = self.blocks[name]
            return HostTensor(
                name, "BLOCKS", of.codes.shape, data.reshape(-1), "memory",
                format=of.format, block_type=BY_NAME[kind],
            )  # fmt: skip
        if name in self._groups:
            of = self._groups[name]
            return HostTensor(
                name, "GROUPED", of.codes.shape, of.to_bytes(), "memory", format=of.format
            )
        array = self.weights.arrays[name]
        return HostTensor(name, "F32", array.shape, array.reshape(-1).view(np.uint8), "memory")

    def close(self) -> None:
        self._groups = {}


def slot(*names: str, groups: dict[str, Groups]) -> Param:
    parts = tuple(Tensor(name, groups[name].codes.shape) for name in names)
    rows = sum(part.shape[0] for part in parts)
    return Param("w", (rows, parts[0].shape[1]), parts, groups[names[0]].format)


def one_linear(groups: dict[str, Groups]) -> Body:
    def body(x: Value, _weights: Weights) -> tuple[list[Op], Value]:
        param = slot(*groups, groups=groups)
        out = Value("out", param.shape[0])
        return [Linear(x, (out,), param)], out

    return body


def steps(
    program: Program,
    store: WeightStore,
    backend: CpuBackend,
    lengths: list[int],
    dtype: Dtype = "float32",
) -> Floats:
    options = CompileOptions(dtype, max_num_tokens=1024, max_num_seqs=64, max_model_len=2048)
    model = backend.compile(program, store, KVCacheSpec(256, 16, dtype, keep_all(program)), options)
    seqs = make_seqs(lengths)
    return logits_of(model.step(batch_of([(seq, len(seq.tokens)) for seq in seqs])))


def is_fused(backend: CpuBackend) -> bool:
    is_generic = "tier generic" in backend.capabilities.description
    return not is_generic or platform.machine() == "aarch64"
