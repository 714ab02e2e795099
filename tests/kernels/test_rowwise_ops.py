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

from quire.backends.base import CompileOptions, Dtype, KVCacheSpec, TokenRows
from quire.backends.cpu import CpuBackend
from quire.backends.reference import ReferenceBackend
from quire.errors import BackendError
from quire.program import (
    Act,
    Activation,
    Add,
    Attention,
    Between,
    Clamp,
    Embed,
    EmbedSlices,
    GivenColumns,
    Glu,
    HeadNorm,
    LayerNorm,
    LearnedPositions,
    Linear,
    Logits,
    MatchRms,
    NormKind,
    Op,
    Outliers,
    Param,
    PositionScale,
    Program,
    RmsNorm,
    Rope,
    RowScale,
    Scale,
    SoftCap,
    TakeRows,
    Tensor,
    Value,
    Weigh,
    Xielu,
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


@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.parametrize("weight", ["shared", "each", "none"])
@pytest.mark.parametrize(("heads", "head_dim"), [(3, 40), (2, 64), (2, 128)])
def test_head_norms_of_all_kinds(
    backend: CpuBackend, kind: NormKind, weight: str, heads: int, head_dim: int
) -> None:
    size = {"shared": head_dim, "each": heads * head_dim, "none": 0}[weight]

    def norm(x: Value, y: Value, w: Weights) -> Op:
        slot = w.param("n", (size,)) if size else None
        return HeadNorm(x, y, slot, 1e-6, heads, head_dim, 0.5, kind)

    assert_close(compile_pair(backend, chain(norm), heads * head_dim), [3, 18], 2e-6)


def test_norms_without_weight_and_with_an_offset(backend: CpuBackend) -> None:
    def body(x: Value, w: Weights) -> tuple[list[Op], Value]:
        bare, out = Value("bare", 100), Value("y", 100)
        norm = LayerNorm(bare, out, w.param("n", (100,)), w.param("b", (100,)), 1e-5, 1.0)
        return [RmsNorm(x, bare, None, 1e-5), norm], out

    assert_close(compile_pair(backend, body, 100), [5, 20], 3e-6)


@pytest.mark.parametrize("norm_first", [False, True])
def test_norm_and_rotation_on_the_way_to_attention(backend: CpuBackend, norm_first: bool) -> None:
    """One native op does both, in their order."""
    dim, inv_freq = 64, tuple(0.3 ** (i / 4) for i in range(16))

    def body(x: Value, w: Weights) -> tuple[list[Op], Value]:
        q, k, v, out = (Value(name, dim) for name in ("q", "k", "v", "y"))
        ops: list[Op] = [Linear(x, (q, k, v), w.param("qkv", (3 * dim, dim), dim**-0.5))]
        ends = []
        for value in (q, k):
            middle, end = Value(f"{value.name}1", dim), Value(f"{value.name}2", dim)
            first, last = ((value, middle), (middle, end))
            normed, turned = (first, last) if norm_first else (last, first)
            norm = HeadNorm(*normed, w.param(f"n{value.name}", (32,)), 1e-6, 2, 32)
            rope = Rope(*turned, 2, 32, inv_freq)
            ops += [norm, rope] if norm_first else [rope, norm]
            ends.append(end)
        return [*ops, Attention(*ends, v, out, 0, 2, 2, 32, 0.2)], out

    pair = compile_pair(backend, body, dim)
    assert_close(pair, [40, 3], 3e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_clamp_position_scale_and_xielu(backend: CpuBackend, dtype: Dtype) -> None:
    def body(x: Value, w: Weights) -> tuple[list[Op], Value]:
        wide, bent, far, out = (Value(name, 40) for name in ("wide", "bent", "far", "y"))
        alphas = w.param("p", (1,)), w.param("n", (1,))
        return [
            Scale(x, wide, 3.0), Xielu(wide, bent, *alphas), PositionScale(bent, far, 0.4, 7, 1),
            Clamp(far, out, 2.5),
        ], out  # fmt: skip

    assert_close(compile_pair(backend, body, 40, dtype), [30, 9], TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("bounds", [(-0.5, 1.25), (0.25, np.inf), (-np.inf, np.inf), (1.0, -1.0)])
def test_between(backend: CpuBackend, dtype: Dtype, bounds: tuple[float, float]) -> None:
    def body(x: Value, w: Weights) -> tuple[list[Op], Value]:
        out = Value("y", 40)
        names = zip(("low", "high"), bounds, strict=True)
        given = (w.given(name, np.array([one], np.float32)) for name, one in names)
        return [Between(x, out, *given)], out

    assert_close(compile_pair(backend, body, 40, dtype), [30, 9], TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("dim", [16, 40, 100])
def test_weigh_row_scale_and_soft_cap(backend: CpuBackend, dtype: Dtype, dim: int) -> None:
    def body(x: Value, w: Weights) -> tuple[list[Op], Value]:
        each, one, capped, out = (Value(name, dim) for name in ("each", "one", "capped", "y"))
        factor, other = Value("factor", 1), Value("other", 1)
        return [
            Linear(x, (other, factor), w.param("factors", (2, dim), dim**-0.5)),
            Weigh(x, each, w.param("each", (dim,))), Weigh(each, one, w.param("one", (1,))),
            SoftCap(one, capped, 0.7), RowScale(capped, factor, out),
        ], out  # fmt: skip

    assert_close(compile_pair(backend, body, dim, dtype), [30, 9], TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("dim", [16, 40, 100])
@pytest.mark.parametrize("deviations", [-0.3, 0.5, 1.6])
def test_outliers_and_sizes_of_rows(
    backend: CpuBackend, dtype: Dtype, dim: int, deviations: float
) -> None:
    def body(x: Value, _: Weights) -> tuple[list[Op], Value]:
        few, small, large, out = (Value(name, dim) for name in ("few", "small", "large", "y"))
        return [
            Outliers(x, few, deviations), Scale(few, small, 1e-2), MatchRms(small, x, large, 1e-5),
            Add(large, x, out),
        ], out  # fmt: skip

    assert_close(compile_pair(backend, body, dim, dtype), [30, 9], TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_slices_of_the_rows_of_a_table(backend: CpuBackend, dtype: Dtype) -> None:
    """Tokens behind the table have its first row."""

    def body(x: Value, w: Weights) -> tuple[list[Op], Value]:
        parts = tuple(Value(f"part{i}", 40) for i in range(3))
        both, out = Value("both", 40), Value("y", 40)
        table = w.param("slices", (7, 120))
        [tensor] = table.parts
        rows = Tensor(tensor.name, tensor.shape, rows=((0, 1),) * (VOCAB - 7))
        whole = Param("slices", (VOCAB, 120), (tensor, rows))
        return [
            EmbedSlices(parts, whole, 2.5),
            Add(parts[2], parts[0], both),
            Add(both, x, out),
        ], out

    assert_close(compile_pair(backend, body, 40, dtype), [30, 9], TOLERANCE[dtype])


def test_rows_are_gathered_out_of_one_tensor(backend: CpuBackend) -> None:
    """q, k and v of each of three groups lie together: 2 query heads, k, v."""
    dim, head, groups = 48, 16, 3
    runs = {"q": (0, 2 * head), "k": (2 * head, head), "v": (3 * head, head)}

    def body(x: Value, w: Weights) -> tuple[list[Op], Value]:
        whole = w.param("qkv", (4 * head * groups, dim), dim**-0.5)
        bias = w.param("bias", (4 * head * groups,))
        parts = [
            tuple((group * 4 * head + first, count) for group in range(groups))
            for first, count in runs.values()
        ]
        rows = [tuple(Tensor(p.name, p.shape, rows=run) for run in parts) for p in (whole, bias)]
        outs = [Value(name, groups * count) for name, (_, count) in runs.items()]
        slots = [
            Param(f"{p.name}.slot", p.shape, kept)
            for p, kept in zip((whole, bias), rows, strict=True)
        ]
        return [Linear(x, tuple(outs), *slots)], outs[0]

    assert_close(compile_pair(backend, body, dim), [20], 2e-6)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotated", [8, 20, 32])
def test_rope(backend: CpuBackend, rotated: int, interleaved: bool) -> None:
    inv_freq = tuple(1e4 ** (-i / rotated) for i in range(rotated // 2))
    body = chain(lambda x, y, _: Rope(x, y, 3, 32, inv_freq, 1.25, interleaved))
    assert_close(compile_pair(backend, body, 96), [40, 1, 7], 2e-6)


@pytest.mark.parametrize("rotated", [8, 32])
def test_rope_with_axes(backend: CpuBackend, rotated: int) -> None:
    """Frequencies turn by the positions of their axes; equal positions give the bits of a rope
    without axes."""
    half = rotated // 2
    inv_freq = tuple(1e4 ** (-i / half) for i in range(half))
    axes = tuple(i % 3 for i in range(half))
    with_axes = compile_pair(
        backend, chain(lambda x, y, _: Rope(x, y, 3, 32, inv_freq, axes=axes)), 96
    )
    plain = compile_pair(backend, chain(lambda x, y, _: Rope(x, y, 3, 32, inv_freq)), 96)
    seqs = [(seq, len(seq.tokens)) for seq in make_seqs([40, 1, 7])]
    batch = batch_of(seqs)
    wanted = logits_of(plain.native.step(batch)).tobytes()
    assert logits_of(with_axes.native.step(batch)).tobytes() == wanted
    batch.axis_positions = np.repeat(batch.positions[:, None], 3, axis=1)
    assert logits_of(with_axes.native.step(batch)).tobytes() == wanted
    batch.axis_positions = np.random.default_rng(1).integers(0, 2000, (48, 3)).astype(np.int32)
    found = [logits_of(model.step(batch)) for model in (with_axes.native, with_axes.reference)]
    assert found[0].tobytes() != wanted
    assert np.abs(found[0] - found[1]).max() <= 2e-6 * np.abs(found[1]).max()
    batch.axis_positions[3, 1] = 2048
    for model in (with_axes.native, with_axes.reference):
        with pytest.raises(BackendError, match="axis position 2048 is not from 0 to 2047"):
            model.step(batch)


def test_columns_of_given_rows(backend: CpuBackend) -> None:
    """Tokens without a row get zeros, and so do rows that have no such numbers."""

    def body(x: Value, _: Weights) -> tuple[list[Op], Value]:
        given, out = Value("given", 40), Value("y", 40)
        return [GivenColumns(given, 50, VOCAB), Add(x, given, out)], out

    pair = compile_pair(backend, body, 40)
    batch = batch_of([(seq, len(seq.tokens)) for seq in make_seqs([20, 5])])
    plain = logits_of(pair.native.step(batch))
    rows = np.random.default_rng(2).normal(size=(6, 90)).astype(np.float32)
    batch.input_rows = [TokenRows(3, rows[:4]), TokenRows(22, rows[4:, :40])]
    found = [logits_of(model.step(batch)) for model in (pair.native, pair.reference)]
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0][3:7], rows[:4, :40] + rows[:4, 50:])
    assert np.array_equal(found[0][22:24], rows[4:, :40])
    assert np.array_equal(found[0][:3], plain[:3])


@pytest.mark.parametrize("act", ["silu", "gelu", "gelu_tanh", "gelu_quick", "relu", "relu2"])
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
