"""Grouped weights whose codes stand for floats: the definition bit for bit, on every tier."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from grouped_harness import (
    LENGTHS,
    SHAPES,
    GroupedStore,
    is_fused,
    one_linear,
    random_groups,
    steps,
)
from harness import Floats, Weights, make_seqs, program_of, rounded

from quire.backends.base import Dtype
from quire.backends.cpu import CpuBackend
from quire.program import GroupedFormat
from quire.program.values import CodeTable
from quire.weights.quantised.groups import LEVELS, Groups

FORMATS = [
    GroupedFormat("e4m3", 128),
    GroupedFormat("e4m3", 32),
    GroupedFormat("nf4", 64),
    GroupedFormat("fp4", 64),
    GroupedFormat("nf4", 16, has_order=True),
]


def random_floats(format: GroupedFormat, n: int, k: int, seed: int = 0) -> Groups:
    """Without codes that are no numbers."""
    groups = random_groups(format, n, k, seed)
    if format.table == "e4m3":
        groups.codes[groups.codes & 127 == 127] = 0
    return groups


def definition(x: Floats, groups: Groups, backend: CpuBackend, dtype: Dtype) -> Floats:
    """Within a group the dense product: K after K, a product is added in one rounding, or in two
    without such an instruction. Bfloat16 instructions add two products of K at a time."""
    has_pairs = has_bf16(backend) and groups.format.table == "e4m3" and dtype == "bfloat16"
    if groups.format.table == "e4m3" and dtype == "bfloat16":
        x = rounded(x)
    if groups.order is not None:
        x = x[:, groups.order]
    levels = LEVELS[groups.format.table][groups.codes].astype(np.float64)
    size, depth = groups.format.group, x.shape[1]
    scales = groups.group_scales()
    total = np.zeros((len(x), len(levels)), np.float32)
    for g in range(groups.format.num_groups(depth)):
        found = np.zeros_like(total)
        end = min(depth, (g + 1) * size)
        order = list(range(g * size, end))
        if has_pairs:
            order = [k for pair in range(g * size, end, 2) for k in (pair + 1, pair) if k < end]
        for k in order:
            found = added(found, x[:, k : k + 1], levels[:, k], is_fused(backend))
        total = added(total, found, scales[:, g], is_fused(backend))
    return total


def added(sums: Floats, a: Floats, b: Floats, is_fused: bool) -> Floats:
    product = a.astype(np.float64) * b
    if not is_fused:
        product = product.astype(np.float32)
    found: Floats = (sums.astype(np.float64) + product).astype(np.float32)
    return found


def has_bf16(backend: CpuBackend) -> bool:
    text = backend.capabilities.description
    return "tier avx512_bf16" in text or "tier amx" in text


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("k", "n"), SHAPES)
@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_a_product_is_the_definition(
    backend: CpuBackend, format: GroupedFormat, k: int, n: int, dtype: Dtype
) -> None:
    """Of one row, of a few and of many: the same bits."""
    weights, groups = Weights(), {"w": random_floats(format, n, k)}
    program = program_of(one_linear(groups), k, weights)
    for lengths in ([1], [2], [3], [6], [9], [12], LENGTHS):
        tokens = np.concatenate([seq.tokens for seq in make_seqs(lengths)])
        native = steps(program, GroupedStore(weights, groups), backend, lengths, dtype)
        expected = definition(weights.arrays["table"][tokens], groups["w"], backend, dtype)
        if dtype == "bfloat16":
            expected = rounded(expected)
        np.testing.assert_array_equal(native, expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("table", ["e4m3", "nf4", "fp4"])
def test_every_code_is_its_number(backend: CpuBackend, table: CodeTable, dtype: Dtype) -> None:
    """Rows of x with a single one pick out the weights; those too small for a normal bfloat16 or
    float32 do not occur."""
    format = GroupedFormat(table, 64)
    levels = LEVELS[table]
    k, n = 64, len(levels)
    codes = np.repeat(np.arange(n, dtype=np.uint8)[:, None], k, axis=1)
    if table == "e4m3":
        codes[codes & 127 == 127] = 0
    groups = Groups(format, codes, np.ones((n, 1), np.float32))
    weights = Weights()
    program = program_of(one_linear({"w": groups}), k, weights)
    weights.arrays["table"][:] = np.eye(k, dtype=np.float32)[np.arange(96) % k]
    native = steps(program, GroupedStore(weights, {"w": groups}), backend, [40], dtype)
    expected = np.nan_to_num(levels[codes[:, 0]])
    expected = rounded(expected) if dtype == "bfloat16" else expected
    np.testing.assert_array_equal(native, np.broadcast_to(expected, native.shape))


def test_a_code_that_is_no_number_is_told(
    backend: CpuBackend, caplog: pytest.LogCaptureFixture
) -> None:
    """And its group is no number then, as the number is in a matrix of floats. The head multiplies
    it with zeros too, so that every logit is none."""
    groups = {"w": random_floats(GroupedFormat("e4m3", 32), 40, 96)}
    groups["w"].codes[7, 50] = 0x7F
    weights = Weights()
    program = program_of(one_linear(groups), 96, weights)
    with caplog.at_level(logging.WARNING, logger="quire"):
        native = steps(program, GroupedStore(weights, groups), backend, [5])
    assert "w" in caplog.text
    assert np.isnan(native).all()
