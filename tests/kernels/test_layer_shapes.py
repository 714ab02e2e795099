"""Layers whose heads differ in number and width, and layers that read K and V of another one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from harness import (
    NUM_BLOCKS,
    Weights,
    batch_of,
    close,
    compile_on,
    logits_of,
    make_seqs,
    program_of,
)
from numpy.typing import NDArray

from quire.backends.base import CompiledModel, Dtype, KVCacheSpec
from quire.backends.cpu import CpuBackend
from quire.backends.reference import ReferenceBackend
from quire.config.kv_layout import KVLayout
from quire.errors import IntegrityError
from quire.program import Attention, HeadNorm, Linear, Op, Program, Value, keep_all, kv_layout

DIM, HEADS = 48, 6
SHAPES = [(2, 40), (3, 16), (6, 96), (2, 40), (1, 128)]
"""Kv heads and their width, of each layer."""
WINDOWS = [20, None, 33, 20, None]
CACHES: list[tuple[Dtype, str, float]] = [
    ("float32", "float32", 1e-5), ("bfloat16", "bfloat16", 3e-2), ("bfloat16", "int8", 5e-2),
]  # fmt: skip
PLAN = [[90, 20, 1], [1, 1, 40], [1, 60, 1], [17, 1, 1]]


def program(weights: Weights, *, copies: bool = False) -> Program:
    """A layer for each shape; then layers that read those of the layers 3 and 1. `copies`: they
    have the K and V of these layers as their own instead."""

    def body(x: Value, weights: Weights) -> tuple[list[Op], Value]:
        ops: list[Op] = []
        kept: list[tuple[Value, Value]] = []
        for number, layer in enumerate([*range(len(SHAPES)), 3, 1]):
            kv_heads, width = SHAPES[layer]
            q, attended = Value(f"q{number}", HEADS * width), Value(f"a{number}", HEADS * width)
            out = Value(f"out{number}", DIM)
            outs = [q]
            k: Value | None = None
            v: Value | None = None
            if number < len(SHAPES):
                k, v, normed = (Value(f"{n}{number}", kv_heads * width) for n in ("k", "v", "n"))
                outs += [k, v]
            rows = sum(value.dim for value in outs)
            ops.append(Linear(x, tuple(outs), weights.param(f"w{number}", (rows, DIM), DIM**-0.5)))
            if k is not None and v is not None:
                ops.append(HeadNorm(v, normed, None, 1e-6, kv_heads, width))
                v = normed
                kept.append((k, v))
            place = layer
            if k is None and copies:
                k, v = kept[layer]
                place = number
            ops += [
                Attention(q, k, v, attended, place, HEADS, kv_heads, width, 0.3, WINDOWS[layer]),
                Linear(attended, (out,), weights.param(f"o{number}", (DIM, q.dim), q.dim**-0.5)),
            ]
            x = out
        return ops, x

    return program_of(body, DIM, weights)


def run(model: CompiledModel, layout: KVLayout) -> NDArray[np.float32]:
    """The logits of all steps of the plan; each group has blocks of its own."""
    seqs = make_seqs([sum(counts) for counts in zip(*PLAN, strict=True)])
    free = iter(np.random.default_rng(3).permutation(NUM_BLOCKS).tolist())
    tables = np.full((len(seqs), len(layout.groups), 8), -1, np.int32)
    for row, seq in enumerate(seqs):
        for group in range(len(layout.groups)):
            tables[row, group, : len(seq.blocks)] = [next(free) for _ in seq.blocks]
    found = []
    for counts in PLAN:
        batch = batch_of(list(zip(seqs, counts, strict=True)))
        found.append(logits_of(model.step(replace(batch, block_tables=tables))))
    return np.concatenate(found)


@pytest.mark.parametrize(("dtype", "kv_dtype", "tolerance"), CACHES)
@pytest.mark.parametrize("windows", [False, True])
def test_as_the_reference(
    backend: CpuBackend, dtype: Dtype, kv_dtype: str, tolerance: float, windows: bool
) -> None:
    """In groups that keep all positions, and in those that let go of what is behind a window."""
    weights = Weights()
    whole = program(weights)
    layout = kv_layout(whole, 1024) if windows else keep_all(whole)
    assert len(layout.groups) >= 4
    models = [
        compile_on(b, whole, weights, dtype, kv_dtype=kv_dtype, layout=layout)
        for b in (backend, ReferenceBackend())
    ]
    native, reference = (run(model, layout) for model in models)
    close(*models)
    scale = np.abs(reference).max(axis=1, keepdims=True)
    assert float((np.abs(native - reference) / scale).max()) <= tolerance


@pytest.mark.parametrize(
    ("dtype", "kv_dtype"),
    [("float32", "float32"), ("bfloat16", "bfloat16"), ("float32", "int8"), ("float32", "int4")],
)
def test_shared_keys_and_values_give_the_bits_of_copies(
    backend: CpuBackend, dtype: Dtype, kv_dtype: str
) -> None:
    found = []
    for copies in (False, True):
        weights = Weights()
        whole = program(weights, copies=copies)
        assert len(whole.attention_ops()) == len(SHAPES) + 2
        assert len(whole.memories()) == len(SHAPES) + 2 * copies
        model = compile_on(backend, whole, weights, dtype, kv_dtype=kv_dtype)
        found.append(run(model, keep_all(whole)).tobytes())
        close(model)
    assert found[0] == found[1]


def test_a_block_has_room_for_the_widest_layer(backend: CpuBackend) -> None:
    whole = program(Weights())
    layout = keep_all(whole)
    kv = KVCacheSpec(4, 16, "float32", layout)
    assert layout.num_slots == 2
    assert backend.kv_block_bytes(whole, kv) == 2 * (2 * 6 * 96 * 16 * 4)


def test_a_layer_that_nobody_has_written_is_refused() -> None:
    whole = program(Weights())
    ops = [
        replace(op, layer=4) if isinstance(op, Attention) and op.k is None else op
        for op in whole.ops
    ]
    with pytest.raises(IntegrityError, match="attention reads layer 4, which no op like it"):
        replace(whole, ops=tuple(ops)).check()
    ops = [
        replace(op, k=None) if isinstance(op, Attention) and op.layer == 0 else op
        for op in whole.ops
    ]
    with pytest.raises(IntegrityError, match="attention of layer 0 has v alone"):
        replace(whole, ops=tuple(ops)).check()
