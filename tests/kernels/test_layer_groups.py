"""Layers in groups, each with a block table: the same bits as with one table that keeps everything.

What lies wholly behind a window is poisoned with NaN and named by no table, before any kernel
could look at it again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from harness import (
    BLOCK_SIZE,
    NUM_BLOCKS,
    Seq,
    Weights,
    batch_of,
    close,
    compile_on,
    logits_of,
    make_seqs,
    program_of,
)
from numpy.typing import NDArray

from quire.backends.base import CompiledModel, Dtype, StepBatch
from quire.backends.cpu import CpuBackend
from quire.config.kv_layout import KVLayout
from quire.errors import BackendError
from quire.program import (
    ActivationBits,
    Attention,
    Linear,
    Op,
    Program,
    Value,
    keep_all,
    kv_layout,
)

DIM = 64
CACHES: list[tuple[Dtype, str, ActivationBits]] = [
    ("float32", "float32", 16), ("bfloat16", "bfloat16", 16), ("bfloat16", "int8", 16),
    ("bfloat16", "int8", 8), ("bfloat16", "int4", 16), ("bfloat16", "int4", 8),
]  # fmt: skip
PLAN = [[250, 60, 1], [10, 1, 100], [1, 1, 1], [60, 0, 120], [1, 1, 1], [30, 29, 1], [1, 1, 1]]
WINDOWS: list[tuple[int | None, ...]] = [(300, None, 300, 40), (17, 17), (256, 1, 33, None)]


def attention_program(
    weights: Weights, windows: Sequence[int | None], heads: int = 4, bits: ActivationBits = 16
) -> Program:
    """A layer of attention and its products for each window."""

    def body(x: Value, weights: Weights) -> tuple[list[Op], Value]:
        ops: list[Op] = []
        for layer, window in enumerate(windows):
            q = Value(f"q{layer}", heads * 32)
            k, v = (Value(f"{name}{layer}", 2 * 32) for name in "kv")
            attended, out = Value(f"attended{layer}", q.dim), Value(f"out{layer}", DIM)
            qkv = weights.param(f"qkv{layer}", (q.dim + k.dim + v.dim, x.dim), x.dim**-0.5)
            ops += [
                Linear(x, (q, k, v), qkv),
                Attention(
                    q, k, v, attended, layer, heads, 2, 32, 32**-0.5, window, activation_bits=bits
                ),
                Linear(attended, (out,), weights.param(f"o{layer}", (DIM, q.dim), q.dim**-0.5)),
            ]
            x = out
        return ops, x

    return program_of(body, DIM, weights)


class Tables:
    """Blocks of every group for some requests, drawn from one pool."""

    def __init__(self, layout: KVLayout, seqs: Sequence[Seq], num_blocks: int) -> None:
        self._layout = layout
        free = iter(np.random.default_rng(3).permutation(num_blocks).tolist())
        self._tables = [
            np.array([[next(free) for _ in seq.blocks] for _ in layout.groups], np.int32)
            for seq in seqs
        ]

    def forget(self, index: int, computed: int) -> Iterator[int]:
        """Takes from a request, and gives, the blocks that its next token does not see."""
        for group, table in zip(self._layout.groups, self._tables[index], strict=True):
            unseen = table[: group.first_entry(computed, BLOCK_SIZE)]
            yield from unseen[unseen >= 0].tolist()
            unseen[:] = -1

    def of(self, indexes: Sequence[int]) -> NDArray[np.int32]:
        """[R, G, B]."""
        width = max(self._tables[index].shape[1] for index in indexes)
        shape = (len(indexes), len(self._layout.groups), width)
        found = np.full(shape, -1, np.int32)
        for row, index in enumerate(indexes):
            found[row, :, : self._tables[index].shape[1]] = self._tables[index]
        return found


def steps(
    model: CompiledModel, layout: KVLayout, plan: Sequence[Sequence[int]], num_blocks: int
) -> Iterator[tuple[StepBatch, NDArray[np.float32]]]:
    """plan[s][r]: tokens of request r in step s. Gives what went in, with one table for the same
    tokens, and the logits."""
    seqs = make_seqs([sum(counts) for counts in zip(*plan, strict=True)])
    tables = Tables(layout, seqs, num_blocks)
    for counts in plan:
        indexes = [index for index, count in enumerate(counts) if count]
        for index in indexes:
            gone = np.array(list(tables.forget(index, seqs[index].computed)), np.int32)
            if len(gone):
                model.write_blocks(gone, np.full_like(model.read_blocks(gone), 0xFF))
        batch = batch_of([(seqs[index], counts[index]) for index in indexes])
        found = model.step(replace(batch, block_tables=tables.of(indexes)))
        yield batch, logits_of(found)


@pytest.mark.parametrize("windows", WINDOWS, ids=str)
@pytest.mark.parametrize(("dtype", "kv_dtype", "bits"), CACHES)
def test_groups_give_the_bits_of_one_table(
    backend: CpuBackend,
    dtype: Dtype,
    kv_dtype: str,
    bits: ActivationBits,
    windows: tuple[int | None, ...],
) -> None:
    weights = Weights(7)
    program = attention_program(weights, windows, bits=bits)
    layout = kv_layout(program, 2048)
    one, grouped = (
        compile_on(backend, program, weights, dtype, kv_dtype=kv_dtype, layout=held)
        for held in (keep_all(program), layout)
    )
    assert all(group.window is None or group.window < 2048 for group in layout.groups)
    grouped.write_blocks(
        np.arange(NUM_BLOCKS, dtype=np.int32),
        np.full_like(grouped.read_blocks(np.arange(NUM_BLOCKS, dtype=np.int32)), 0xFF),
    )
    for batch, found in steps(grouped, layout, PLAN, NUM_BLOCKS):
        expected = logits_of(one.step(batch))
        assert np.isfinite(expected).all()
        assert found.tobytes() == expected.tobytes()
    close(one, grouped)


@pytest.mark.parametrize("heads", [2, 14])
def test_a_single_token_far_behind_a_window_is_shared_out(backend: CpuBackend, heads: int) -> None:
    """One request alone, whose chunks are given to several workers, and with other numbers of
    query heads to a kv head."""
    weights = Weights(8)
    program = attention_program(weights, (400, 400, None), heads=heads)
    layout = kv_layout(program, 2048)
    one, grouped = (
        compile_on(backend, program, weights, "bfloat16", layout=held)
        for held in (keep_all(program), layout)
    )
    for batch, found in steps(grouped, layout, [[900], [1], [1], [130], [1]], NUM_BLOCKS):
        assert found.tobytes() == logits_of(one.step(batch)).tobytes()
    close(one, grouped)


def test_a_block_holds_the_slots_of_one_group(backend: CpuBackend) -> None:
    weights = Weights(7)
    program = attention_program(weights, (300, None, 300, None))
    layout = kv_layout(program, 2048)
    assert (layout.num_slots, len(layout.groups)) == (2, 2)
    one, grouped = (
        compile_on(backend, program, weights, layout=held) for held in (keep_all(program), layout)
    )
    ids = np.array([0], np.int32)
    assert one.read_blocks(ids).shape[1] == 2 * grouped.read_blocks(ids).shape[1]
    assert one.memory().kv_reserved_bytes == 2 * grouped.memory().kv_reserved_bytes
    close(one, grouped)


def test_tables_of_a_wrong_shape_are_refused(backend: CpuBackend) -> None:
    weights = Weights(7)
    program = attention_program(weights, (20, None))
    layout = kv_layout(program, 2048)
    model = compile_on(backend, program, weights, layout=layout)
    [seq] = make_seqs([40])
    batch = batch_of([(seq, 40)])
    with pytest.raises(BackendError, match=r"must be \[1, 2, entries\], not"):
        model.step(batch)
    tables = np.array([[[0, 1, 2], [3, 4, NUM_BLOCKS]]], np.int32)
    with pytest.raises(BackendError, match=f"block id {NUM_BLOCKS} is not from 0"):
        model.step(replace(batch, block_tables=tables))
    close(model)
