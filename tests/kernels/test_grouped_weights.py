"""Weights in a checkpoint's own groups: the definition bit for bit, on every tier."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from harness import Body, Floats, Weights, batch_of, logits_of, make_seqs, program_of

from quire.backends.base import CompileOptions, KVCacheSpec
from quire.backends.cpu import CpuBackend
from quire.program import GroupedFormat, Linear, Op, Param, Program, Tensor, Value, keep_all
from quire.weights import HostTensor, WeightStore
from quire.weights.quantised.groups import TABLES, Groups

FORMATS = [
    GroupedFormat("s4", 128),
    GroupedFormat("s4", 32, scale="f16", activation_bits=8),
    GroupedFormat("u4", 64, has_zeros=True),
    GroupedFormat("u4", 128, has_zeros=True, activation_bits=8),
    GroupedFormat("u4", 32, has_minima=True, scale="f16"),
    GroupedFormat("u4", 32, has_minima=True, activation_bits=8),
    GroupedFormat("iq4", 32, scale="f16"),
    GroupedFormat("e2m1", 16, activation_bits=8),
    GroupedFormat("s8", 32, scale="f16"),
    GroupedFormat("s8", 16, has_minima=True, activation_bits=8),
]
SHAPES = [(16, 16), (80, 33), (320, 160), (1037, 50)]
LENGTHS = [1, 3, 17, 70]


def random_groups(format: GroupedFormat, n: int, k: int, seed: int = 0) -> Groups:
    random = np.random.default_rng(seed)
    groups = (n, format.num_groups(k))
    return Groups(
        format,
        random.integers(0, len(TABLES[format.table]), (n, k), np.uint8),
        random.normal(0, 0.01, groups).astype(np.float32),
        random.integers(0, 16, groups, np.uint8) if format.has_zeros else None,
        random.normal(0, 0.01, groups).astype(np.float32) if format.has_minima else None,
    )


def definition(x: Floats, groups: Groups) -> Floats:
    """Whole numbers within a group; from group to group float32 sums in ascending order of K."""
    format = groups.format
    limit = np.float32(127 if format.activation_bits == 8 else 127 * 256)
    largest = np.abs(x).max(axis=1, keepdims=True)
    whole_x = np.rint(x * (limit / largest)).astype(np.int64)
    numbers = TABLES[format.table][groups.codes].astype(np.int64)
    held = np.float16 if format.scale == "f16" else np.float32
    sums = np.zeros((len(x), len(groups.codes)), np.float32)
    for g in range(format.num_groups(x.shape[1])):
        span = slice(g * format.group, (g + 1) * format.group)
        of_group = numbers[:, span]
        if groups.zeros is not None:
            of_group = of_group - groups.zeros[:, g : g + 1]
        scale = groups.scales[:, g].astype(held).astype(np.float32)
        sums += (whole_x[:, span] @ of_group.T).astype(np.float32) * scale
        if groups.minima is not None:
            minimum = groups.minima[:, g].astype(held).astype(np.float32)
            sums += whole_x[:, span].sum(axis=1, keepdims=True).astype(np.float32) * minimum
    return sums * (largest / limit)


class GroupedStore(WeightStore):
    """Arrays, and one matrix in groups."""

    def __init__(self, weights: Weights, groups: dict[str, Groups]) -> None:
        self._weights, self._groups = weights, groups

    def names(self) -> Iterable[str]:
        return [*self._weights.arrays, *self._groups]

    def get(self, name: str) -> HostTensor:
        if name in self._groups:
            of = self._groups[name]
            return HostTensor(
                name, "GROUPED", of.codes.shape, of.to_bytes(), "memory", format=of.format
            )
        array = self._weights.arrays[name]
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


def steps(program: Program, store: WeightStore, backend: CpuBackend, lengths: list[int]) -> Floats:
    options = CompileOptions("float32", max_num_tokens=1024, max_num_seqs=64, max_model_len=2048)
    model = backend.compile(
        program, store, KVCacheSpec(256, 16, "float32", keep_all(program)), options
    )
    seqs = make_seqs(lengths)
    return logits_of(model.step(batch_of([(seq, len(seq.tokens)) for seq in seqs])))


@pytest.mark.parametrize(("k", "n"), SHAPES)
@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_a_product_is_the_definition(
    backend: CpuBackend, format: GroupedFormat, k: int, n: int
) -> None:
    """Of one row, of a few and of many: the same bits."""
    weights, groups = Weights(), {"w": random_groups(format, n, k)}
    program = program_of(one_linear(groups), k, weights)
    for lengths in ([1], [3], LENGTHS):
        tokens = np.concatenate([seq.tokens for seq in make_seqs(lengths)])
        native = steps(program, GroupedStore(weights, groups), backend, lengths)
        expected = definition(weights.arrays["table"][tokens], groups["w"])
        np.testing.assert_array_equal(native, expected)
