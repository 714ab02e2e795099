"""Attention without a cache, means and token types: programs that end in vectors, against the
reference, on contexts of several chunks of positions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray
from small_model import RandomStore

from quire.backends.base import (
    Backend,
    CompiledModel,
    CompileOptions,
    Dtype,
    KVCacheSpec,
    StepBatch,
)
from quire.backends.cpu import CpuBackend
from quire.backends.reference import ReferenceBackend
from quire.errors import BackendError
from quire.program import Builder, HeadLayout, Out, Program, Tensor, kv_layout

VOCAB, DIM = 41, 96
LENGTHS = (1, 300, 17, 256, 33, 527)
TOLERANCES: dict[Dtype, float] = {"float32": 3e-6, "bfloat16": 1.2e-2}

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Shape:
    """An encoder of one layer, by what sets it apart."""

    heads: int = 3
    kv_heads: int = 3
    window: int | None = None
    alibi: bool = False
    softcap: float | None = None
    relative: bool = False
    mean: bool = False
    spans: bool = False

    def program(self) -> Program:
        """Embeddings and types, attention, and all rows or their mean."""
        builder = Builder("encoder")
        x = builder.embed(Tensor("embed", (VOCAB, DIM)))
        x = builder.scale(builder.token_types(x, Tensor("types", (2, DIM))), 0.1)
        heads = HeadLayout(self.heads, self.kv_heads, DIM // self.heads)
        dims = (("q", heads.q_dim), ("k", heads.kv_dim), ("v", heads.kv_dim))
        q, k, v = builder.linears(x, [Out(name, name, dim) for name, dim in dims])
        slopes = tuple(0.5 ** (head + 1) for head in range(self.heads)) if self.alibi else None
        biases, buckets = None, ()
        if self.relative:
            biases = builder.relative_biases("biases", 5, self.heads)
            buckets = (0, 0, 1, 2, 2, 3, 4)
        out = builder.attention(
            q, k, v, heads, window=self.window, softcap=self.softcap, alibi_slopes=slopes,
            is_causal=False, relative=biases, buckets=buckets,
            spans=self.spans,
        )  # fmt: skip
        builder.vectors(builder.mean_rows(out) if self.mean else builder.take_rows(out))
        return builder.program()


SHAPES = [
    Shape(),
    Shape(heads=6, kv_heads=2),
    Shape(window=20),
    Shape(window=280),
    Shape(alibi=True),
    Shape(softcap=2.0, relative=True),
    Shape(mean=True),
]


def compiled(backend: Backend, program: Program, dtype: Dtype) -> CompiledModel:
    options = CompileOptions(dtype, max_num_tokens=1200, max_num_seqs=8, max_model_len=600)
    spec = KVCacheSpec(1, 16, dtype, kv_layout(program, 600))
    return backend.compile(program, RandomStore(program), spec, options)


def texts(lengths: tuple[int, ...] = LENGTHS) -> list[NDArray[np.int32]]:
    random = np.random.default_rng(3)
    return [random.integers(0, VOCAB, length).astype(np.int32) for length in lengths]


def batch_of(*rows: NDArray[np.int32], mean: bool = False) -> StepBatch:
    """Whole texts; those at odd places of a text are of type 1."""
    lengths = np.array([len(row) for row in rows], np.int32)
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    positions = np.concatenate([np.arange(length, dtype=np.int32) for length in lengths])
    wanted = starts[:-1] if mean else np.arange(starts[-1], dtype=np.int32)
    return StepBatch(
        token_ids=np.concatenate(rows),
        positions=positions,
        seq_starts=starts,
        context_lens=lengths,
        block_tables=np.zeros((len(rows), 0, 0), np.int32),
        logits_rows=wanted,
        sampling=None,
        token_types=positions % 2,
    )


def vectors(model: CompiledModel, batch: StepBatch) -> Floats:
    found = model.step(batch).vectors
    assert found is not None
    return found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_against_the_reference(shape: Shape, dtype: Dtype, backend: CpuBackend) -> None:
    program = shape.program()
    native, truth = (compiled(one, program, dtype) for one in (backend, ReferenceBackend()))
    batch = batch_of(*texts(), mean=shape.mean)
    wanted = vectors(truth, batch)
    error = np.abs(vectors(native, batch) - wanted).max() / np.abs(wanted).max()
    assert error <= TOLERANCES[dtype]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_row_depends_on_its_own_text(shape: Shape, isa: str) -> None:
    """The same bits alone, among others, in another order, on one thread or on two."""
    program, rows = shape.program(), texts()
    one, two = (compiled(CpuBackend(count, isa), program, "float32") for count in (1, 2))
    together = vectors(two, batch_of(*rows, mean=shape.mean))
    begin = 0
    for row in rows:
        alone = vectors(one, batch_of(row, mean=shape.mean))
        assert together[begin : begin + len(alone)].tobytes() == alone.tobytes()
        begin += len(alone)
    turned = vectors(one, batch_of(*reversed(rows), mean=shape.mean))
    assert turned[-len(alone) :].shape == alone.shape
    assert turned[: len(alone)].tobytes() == alone.tobytes()


def spans_of(lengths: tuple[int, ...], size: int) -> NDArray[np.int32]:
    """Spans of `size` tokens; the last one of a text is shorter."""
    places = np.concatenate([np.arange(length) for length in lengths])
    ends = np.concatenate([np.full(length, length) for length in lengths])
    firsts = places // size * size
    return np.stack([firsts, np.minimum(firsts + size, ends) - 1]).astype(np.int32)


@pytest.mark.parametrize("size", [1, 5, 64, 300])
def test_a_token_sees_its_span_alone(size: int, backend: CpuBackend) -> None:
    """It gets what it gets in a text that is the span."""
    program = Shape(spans=True).program()
    native, truth = (compiled(one, program, "float32") for one in (backend, ReferenceBackend()))
    batch = batch_of(*texts())
    batch.spans = spans_of(LENGTHS, size)
    wanted = vectors(truth, batch)
    found = vectors(native, batch)
    assert np.abs(found - wanted).max() <= 3e-6 * np.abs(wanted).max()
    if size == 64:
        parts = [row[i : i + size] for row in texts() for i in range(0, len(row), size)]
        whole = compiled(backend, Shape().program(), "float32")
        alone = [vectors(whole, batch_of(part)) for part in parts[:8]]
        assert np.abs(np.concatenate(alone) - found[: sum(map(len, alone))]).max() < 1e-5
    batch.spans[1, 5] += 1000
    for model in (native, truth):
        with pytest.raises(BackendError, match="outside of its span"):
            model.step(batch)


def test_parts_of_texts_and_unknown_types_are_refused(backend: CpuBackend) -> None:
    model = compiled(backend, Shape().program(), "float32")
    batch = batch_of(texts()[1])
    batch.positions = batch.positions + np.int32(1)
    batch.context_lens = batch.context_lens + np.int32(1)
    with pytest.raises(BackendError, match="needs all tokens of a request in a step"):
        model.step(batch)
    batch = batch_of(texts()[1])
    assert batch.token_types is not None
    batch.token_types = batch.token_types + np.int32(1)
    with pytest.raises(BackendError, match="token type 2 is not from 0 to 1"):
        model.step(batch)
