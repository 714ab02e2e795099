"""Embeddings, norms and elementwise ops against the reference."""

from __future__ import annotations

import numpy as np
import pytest
from harness import (
    VOCAB,
    ArrayStore,
    Body,
    Weights,
    assert_close,
    batch_of,
    compile_on,
    compile_pair,
    logits_of,
    make_seqs,
    program_of,
)

from quire.backends.base import CompileOptions, Dtype, KVCacheSpec
from quire.backends.cpu import CpuBackend
from quire.backends.reference import ReferenceBackend
from quire.program import (
    Act,
    Activation,
    Add,
    Embed,
    Glu,
    HeadNorm,
    LayerNorm,
    LearnedPositions,
    Logits,
    Op,
    Program,
    RmsNorm,
    Rope,
    Scale,
    TakeRows,
    Value,
    keep_all,
)
from quire.weights.store import TensorDtype

TOLERANCE: dict[Dtype, float] = {"float32": 2e-6, "bfloat16": 1.2e-2}
DIMS = [16, 40, 100, 256]


def chain(make: object) -> Body:
    """A body of one op: make(x, out, weights)."""

    def body(x: Value, weights: Weights) -> tuple[list[Op], Value]:
        out = Value("y", x.dim)
        return [make(x, out, weights)], out

    return body


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_rms_norm(backend: CpuBackend, dim: int, dtype: Dtype, offset: float) -> None:
    body = chain(lambda x, y, w: RmsNorm(x, y, w.param("norm", (x.dim,)), 1e-5, offset))
    assert_close(compile_pair(backend, body, dim, dtype), [5, 20, 1], TOLERANCE[dtype])


@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("affine", [True, False])
def test_layer_norm_far_from_zero(backend: CpuBackend, dim: int, affine: bool) -> None:
    def body(x: Value, w: Weights) -> tuple[list[Op], Value]:
        moved, out = Value("moved", dim), Value("y", dim)
        far = w.given("far", np.full((64, dim), 30.0, np.float32))
        weight = w.param("norm", (dim,)) if affine else None
        bias = w.param("bias", (dim,)) if affine else None
        positions = LearnedPositions(x, moved, far, 0)
        return [positions, LayerNorm(moved, out, weight, bias, 1e-5)], out

    weights = Weights()
    program = program_of(body, dim, weights)
    options = CompileOptions("float32", 64, 8, 64)
    spec = KVCacheSpec(256, 16, "float32", keep_all(program))
    models = [
        b.compile(program, ArrayStore(weights.arrays), spec, options)
        for b in (backend, ReferenceBackend())
    ]
    batch = batch_of([(seq, len(seq.tokens)) for seq in make_seqs([9, 30])])
    native, reference = (logits_of(model.step(batch)) for model in models)
    np.testing.assert_allclose(native, reference, atol=2e-5)


@pytest.mark.parametrize(("heads", "head_dim"), [(1, 16), (3, 40), (2, 128)])
def test_head_norm(backend: CpuBackend, heads: int, head_dim: int) -> None:
    body = chain(lambda x, y, w: HeadNorm(x, y, w.param("n", (head_dim,)), 1e-6, heads, head_dim))
    assert_close(compile_pair(backend, body, heads * head_dim), [3, 18], 2e-6)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotated", [8, 20, 32])
def test_rope(backend: CpuBackend, rotated: int, interleaved: bool) -> None:
    inv_freq = tuple(1e4 ** (-i / rotated) for i in range(rotated // 2))
    body = chain(lambda x, y, _: Rope(x, y, 3, 32, inv_freq, 1.25, interleaved))
    assert_close(compile_pair(backend, body, 96), [40, 1, 7], 2e-6)


@pytest.mark.parametrize("act", ["silu", "gelu", "gelu_tanh", "relu"])
@pytest.mark.parametrize("dim", [16, 100])
def test_activations(backend: CpuBackend, act: Activation, dim: int) -> None:
    def body(x: Value, _: Weights) -> tuple[list[Op], Value]:
        wide, out, both = Value("wide", dim), Value("y", dim), Value("both", dim)
        return [Scale(x, wide, 4.0), Act(wide, out, act), Glu(wide, out, both, act)], both

    assert_close(compile_pair(backend, body, dim), [30], 3e-6)


def test_add_and_scale(backend: CpuBackend) -> None:
    def body(x: Value, _: Weights) -> tuple[list[Op], Value]:
        twice, out = Value("twice", x.dim), Value("y", x.dim)
        return [Scale(x, twice, 2.5), Add(twice, x, out)], out

    assert_close(compile_pair(backend, body, 33), [17], 1e-6)


@pytest.mark.parametrize("source", ["F32", "BF16", "F16"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("tied", [False, True])
def test_embedding_of_every_source(
    backend: CpuBackend, source: TensorDtype, dtype: Dtype, tied: bool
) -> None:
    """A tied head is looked up in its packed form."""
    dim = 48
    weights = Weights(3)
    program = program_of(lambda x, _: ([], x), dim, weights)
    if tied:
        embed, logits = program.ops[0], program.ops[-1]
        assert isinstance(embed, Embed)
        assert isinstance(logits, Logits)
        head = Logits(logits.x, Value("out", VOCAB), embed.table)
        program = Program("tied", (*program.ops[:-1], head))
    models = [
        compile_on(b, program, weights, dtype, source=source) for b in (backend, ReferenceBackend())
    ]
    batch = batch_of([(seq, len(seq.tokens)) for seq in make_seqs([37])])
    native, reference = (logits_of(model.step(batch)) for model in models)
    scale = float(np.abs(reference).max())
    np.testing.assert_allclose(native / scale, reference / scale, atol=TOLERANCE[dtype])


def test_only_the_wanted_rows_have_logits(backend: CpuBackend) -> None:
    weights = Weights()
    norm = chain(lambda x, y, w: RmsNorm(x, y, w.param("norm", (x.dim,)), 1e-5))
    program = program_of(norm, 64, weights)
    assert any(isinstance(op, TakeRows) for op in program.ops)
    model = compile_on(backend, program, weights)
    batch = batch_of([(seq, 20) for seq in make_seqs([20, 20])])
    every = logits_of(model.step(batch))
    batch.logits_rows = np.array([3, 19, 39], np.int32)
    assert np.array_equal(logits_of(model.step(batch)), every[[3, 19, 39]])
