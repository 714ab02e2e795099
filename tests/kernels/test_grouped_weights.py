"""Weights in a checkpoint's own groups: the definition bit for bit, on every tier."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, cast

import numpy as np
import pytest
from gguf_blocks import random_blocks
from grouped_harness import (
    LENGTHS,
    SHAPES,
    GroupedStore,
    is_fused,
    one_linear,
    random_groups,
    steps,
)
from harness import Floats, Weights, extreme_rows, make_seqs, program_of

from quire.backends.cpu import CpuBackend
from quire.errors import QuireError
from quire.models.quantised.block_formats import BLOCK_FORMATS
from quire.program import (
    Embed,
    GroupedFormat,
    Logits,
    Program,
    Value,
)
from quire.program.values import CodeTable
from quire.weights.quantised.groups import TABLES, Groups

FORMATS = [
    GroupedFormat("s4", 128),
    GroupedFormat("s4", 32, scale="f16", activation_bits=8),
    GroupedFormat("u4", 64, has_zeros=True),
    GroupedFormat("u4", 128, has_zeros=True, activation_bits=8),
    GroupedFormat("u4", 32, has_minima=True, scale="f16"),
    GroupedFormat("u4", 32, has_minima=True, activation_bits=8),
    GroupedFormat("iq4", 32, scale="f16"),
    GroupedFormat("e2m1", 16),
    GroupedFormat("s8", 32, scale="f16"),
    GroupedFormat("s8", 16, has_minima=True, activation_bits=8),
    GroupedFormat("s8", 32, scale="f16", activation_bits=8, activation_blocks=True),
    GroupedFormat("u4", 32, has_zeros=True, activation_bits=8, activation_blocks=True),
    GroupedFormat("e2m1", 16, scale="e4m3"),
    GroupedFormat("e2m1", 16, scale="e4m3", activation_bits=8, activation_blocks=True),
    GroupedFormat("u4", 128, has_zeros=True, has_order=True),
    GroupedFormat("s4", 32, has_order=True, activation_bits=8),
    GroupedFormat("e2m1", 16, scale="e4m3", has_order=True),
]
ACTIVATIONS = [(16, False), (8, False), (8, True)]
BLOCK = 32


def is_multiplied(format: GroupedFormat) -> bool:
    """Whether the native library has kernels for a format. With 8-bit activations these are the
    formats of checkpoints: GGUF's alone have a scale for each block of activations."""
    if format.activation_bits == 16:
        return True
    if format.activation_blocks:
        return format.group == (16 if format.table == "s6" else 32) or format.table == "e2m1"
    return format.table in ("u4", "s4", "s8")


WITH_TABLES = [
    GroupedFormat(
        table, 16 if table == "s6" else 32, activation_bits=bits, activation_blocks=blocks
    )
    for table in cast(list[CodeTable], list(TABLES))
    for bits, blocks in ACTIVATIONS
]


def definition(x: Floats, groups: Groups, is_fused: bool) -> Floats:
    """Whole numbers within a group; from group to group float32 sums in ascending order of K, to
    which a product is added in one rounding (`is_fused`) or two."""
    format = groups.format
    if groups.order is not None:
        x = x[:, groups.order]
    limit = np.float32(127 if format.activation_bits == 8 else 127 * 256)
    span_of_scale = BLOCK if format.activation_blocks else x.shape[1]
    starts = np.arange(0, x.shape[1], span_of_scale)
    largest = np.maximum.reduceat(np.abs(x), starts, axis=1)
    inverses = np.divide(limit, largest, out=np.zeros_like(largest), where=largest > 0)
    inverse = np.repeat(inverses, span_of_scale, axis=1)[:, : x.shape[1]]
    whole_x = np.rint(x * inverse).astype(np.int64)
    x_scales = largest / limit

    def added(sums: Floats, a: Floats, b: Floats) -> Floats:
        if is_fused:
            found: Floats = (sums + a.astype(np.float64) * b).astype(np.float32)
            return found
        return sums + a * b

    numbers = TABLES[format.table][groups.codes].astype(np.int64)
    held = np.float16 if format.scale == "f16" else np.float32
    sums = np.zeros((len(x), len(groups.codes)), np.float32)
    for g in range(format.num_groups(x.shape[1])):
        span = slice(g * format.group, (g + 1) * format.group)
        of_group = numbers[:, span]
        if groups.zeros is not None:
            of_group = of_group - groups.zeros[:, g : g + 1]
        scale = groups.group_scales()[:, g]
        total = whole_x[:, span].sum(axis=1, keepdims=True).astype(np.float32)
        factor = np.broadcast_to(scale, sums.shape)
        if format.activation_blocks:
            x_scale = x_scales[:, span.start // BLOCK, None]
            factor, total = scale * x_scale, total * x_scale
        sums = added(sums, (whole_x[:, span] @ of_group.T).astype(np.float32), factor)
        if groups.minima is not None:
            minimum = groups.minima[:, g].astype(held).astype(np.float32)
            sums = added(sums, np.broadcast_to(total, sums.shape), minimum)
    return sums if format.activation_blocks else sums * x_scales


@pytest.mark.parametrize(("k", "n"), SHAPES)
@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_a_product_is_the_definition(
    backend: CpuBackend, format: GroupedFormat, k: int, n: int
) -> None:
    """Of one row, of a few and of many: the same bits."""
    weights, groups = Weights(), {"w": random_groups(format, n, k)}
    program = program_of(one_linear(groups), k, weights)
    for lengths in ([1], [3], [8], LENGTHS):
        tokens = np.concatenate([seq.tokens for seq in make_seqs(lengths)])
        native = steps(program, GroupedStore(weights, groups), backend, lengths)
        expected = definition(weights.arrays["table"][tokens], groups["w"], is_fused(backend))
        np.testing.assert_array_equal(native, expected)


def test_scales_of_bytes_are_divided_by_any_number(backend: CpuBackend) -> None:
    """All bytes, and divisors of every size: a scale is the float32 that is nearest to the
    quotient."""
    k, n = 2048, 160
    groups = random_groups(GroupedFormat("e2m1", 16, scale="e4m3"), n, k)
    scales, divisors = groups.scales, groups.divisors
    assert divisors is not None
    scales[:] = np.arange(k // 16, dtype=np.uint8) % 127
    random = np.random.default_rng(5)
    divisors[:] = random.uniform(1, 2, n) * np.exp2(random.integers(-20, 60, n))
    divisors[64:] = random.uniform(1, 2, n - 64) * np.exp2(random.integers(60, 90, n - 64))
    weights = Weights()
    program = program_of(one_linear({"w": groups}), k, weights)
    for lengths in ([1], LENGTHS):
        tokens = np.concatenate([seq.tokens for seq in make_seqs(lengths)])
        native = steps(program, GroupedStore(weights, {"w": groups}), backend, lengths)
        expected = definition(weights.arrays["table"][tokens], groups, is_fused(backend))
        np.testing.assert_array_equal(native, expected)


@pytest.mark.parametrize("format", list(filter(is_multiplied, WITH_TABLES)), ids=str)
def test_the_largest_sums_do_not_overflow(backend: CpuBackend, format: GroupedFormat) -> None:
    """Codes and rows at their ends, all of one sign: sums of 16 bits are as large as they get."""
    weights, k, n = Weights(), 128, 40
    groups = random_groups(format, n, k)
    last = len(TABLES[format.table]) - 1
    for row, codes in enumerate(([last], [0], [last, 0], [0, last], [0, 0, last, last])):
        groups.codes[row::5] = np.resize(np.array(codes, np.uint8), k)
    program = program_of(one_linear({"w": groups}), k, weights)
    x = weights.arrays["table"]
    for row, numbers in enumerate(extreme_rows(k)):
        x[row::5] = numbers
    tokens = np.concatenate([seq.tokens for seq in make_seqs(LENGTHS)])
    native = steps(program, GroupedStore(weights, {"w": groups}), backend, LENGTHS)
    expected = definition(x[tokens], groups, is_fused(backend))
    np.testing.assert_array_equal(native, expected)


@pytest.mark.parametrize(
    ("name", "bits", "blocks"),
    [
        (name, bits, blocks)
        for name, format in BLOCK_FORMATS.items()
        for bits, blocks in ACTIVATIONS
        if is_multiplied(replace(format, activation_bits=bits, activation_blocks=blocks))
    ],
)
def test_a_product_with_blocks_is_the_definition(
    backend: CpuBackend, name: str, bits: Literal[8, 16], blocks: bool
) -> None:
    """Blocks of a GGUF file, held as they are, in parts that end inside a strip."""
    weights, groups, k = Weights(), {}, 768
    store = GroupedStore(weights, groups)
    for seed, (part, n) in enumerate({"a": 37, "b": 64, "c": 5}.items()):
        data, found = random_blocks(name, n, k, seed)
        form = replace(found.format, activation_bits=bits, activation_blocks=blocks)
        groups[part] = replace(found, format=form)
        store.blocks[part] = name, data
    program = program_of(one_linear(groups), k, weights)
    for lengths in ([1], LENGTHS):
        tokens = np.concatenate([seq.tokens for seq in make_seqs(lengths)])
        x = weights.arrays["table"][tokens]
        native = steps(program, store, backend, lengths)
        parts = [definition(x, of, is_fused(backend)) for of in groups.values()]
        np.testing.assert_array_equal(native, np.concatenate(parts, axis=1))


@pytest.mark.parametrize("name", BLOCK_FORMATS)
@pytest.mark.parametrize("is_tied", [False, True])
def test_rows_of_a_table_are_the_numbers_of_its_blocks(
    backend: CpuBackend, name: str, is_tied: bool
) -> None:
    """Expanded as a table, or looked up in the head's own matrix: bit for bit."""
    data, found = random_blocks(name, 256, 256)
    form = replace(found.format, activation_bits=8, activation_blocks=True)
    groups = {"table": replace(found, format=form)}
    weights = Weights()
    program = program_of(lambda x, _weights: ([], x), 256, weights)
    if is_tied:
        program = _with_tied_head(program, form)
    del weights.arrays["table"]
    store = GroupedStore(weights, groups)
    store.blocks["table"] = name, data
    [seq] = make_seqs([20])
    logits = steps(program, store, backend, [20])
    rows = found.to_float32()[seq.tokens]
    if is_tied:
        expected = definition(rows, groups["table"], is_fused(backend))
        np.testing.assert_array_equal(logits, expected)
    else:
        np.testing.assert_array_equal(logits, rows)


def _with_tied_head(program: Program, format: GroupedFormat) -> Program:
    """The embedding table is the head, and held."""
    *ops, head = program.ops
    assert isinstance(ops[0], Embed)
    assert isinstance(head, Logits)
    table = replace(ops[0].table, format=format)
    logits = Value("logits", table.shape[0])
    tied = replace(head, weight=table, out=logits)
    return replace(program, ops=(replace(ops[0], table=table), *ops[1:], tied))


def test_blocks_of_another_type_are_refused(backend: CpuBackend) -> None:
    data, found = random_blocks("Q4_0", 32, 64)
    format = replace(BLOCK_FORMATS["IQ4_NL"], activation_bits=8, activation_blocks=True)
    groups = {"w": replace(found, format=format)}
    store = GroupedStore(Weights(), groups)
    program = program_of(one_linear(groups), 64, store.weights)
    store.blocks["w"] = "Q4_0", data
    with pytest.raises(QuireError, match="blocks of another format"):
        steps(program, store, backend, [1])


@pytest.mark.parametrize(
    "format", [format for format in WITH_TABLES if not is_multiplied(format)], ids=str
)
def test_a_format_that_no_checkpoint_has_is_refused(
    backend: CpuBackend, format: GroupedFormat
) -> None:
    groups = {"w": random_groups(format, 32, 64)}
    store = GroupedStore(Weights(), groups)
    program = program_of(one_linear(groups), 64, store.weights)
    with pytest.raises(QuireError, match="unknown format"):
        steps(program, store, backend, [1])
