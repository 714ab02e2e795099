"""Dense products over shapes at the edges of strips and blocks, with all that an epilogue does."""

from __future__ import annotations

import numpy as np
import pytest
from harness import (
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

from quire.backends.base import Dtype
from quire.backends.cpu import CpuBackend
from quire.program import Act, Add, Glu, Linear, Op, Scale, Value
from quire.program.ops import Activation
from quire.weights.store import TensorDtype

SHAPES = [
    (1, 16), (2, 17), (15, 31), (16, 16), (17, 18), (31, 33), (32, 64), (33, 63), (64, 32),
    (127, 48), (128, 129), (255, 96), (257, 16), (1024, 47), (1037, 65), (3, 515),
]  # fmt: skip
"""(K, N): one number, whole vectors and strips, one more and one less of each."""
LENGTHS = [1, 2, 5, 17, 64, 131]
TOLERANCE: dict[Dtype, float] = {"float32": 3e-6, "bfloat16": 1e-2}


def product(k: int, n: int) -> Body:
    def body(x: Value, weights: Weights) -> tuple[list[Op], Value]:
        out = Value("out", n)
        bias = weights.param("bias", (n,))
        return [Linear(x, (out,), weights.param("w", (n, k), k**-0.5), bias)], out

    return body


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("k", "n"), SHAPES)
def test_a_product_with_a_bias(backend: CpuBackend, k: int, n: int, dtype: Dtype) -> None:
    assert_close(compile_pair(backend, product(k, n), k, dtype), LENGTHS, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("k", "n"), [(16, 16), (33, 63), (257, 96)])
def test_a_row_has_the_same_bits_in_any_company(
    backend: CpuBackend, k: int, n: int, dtype: Dtype
) -> None:
    weights = Weights()
    program = program_of(product(k, n), k, weights)
    model = compile_on(backend, program, weights, dtype)
    together = logits_of(model.step(batch_of([(seq, len(seq.tokens)) for seq in make_seqs([67])])))
    [alone] = make_seqs([67])
    rows = [logits_of(model.step(batch_of([(alone, 1)])))[0] for _ in range(67)]
    assert np.stack(rows).tobytes() == together.tobytes()
    model.close()


@pytest.mark.parametrize("source", ["F32", "BF16", "F16"])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_of_every_source(
    backend: CpuBackend, source: TensorDtype, transposed: bool, dtype: Dtype
) -> None:
    """The numbers are exact in all three: the bits are those of the plain source."""

    def results(kind: TensorDtype, is_transposed: bool) -> bytes:
        def body(x: Value, made: Weights) -> tuple[list[Op], Value]:
            random = np.random.default_rng(4)
            numbers = random.integers(-8, 9, (70, 45)).astype(np.float32) / 8
            out = Value("out", 70)
            return [Linear(x, (out,), made.given("w", numbers, is_transposed))], out

        weights = Weights()
        program = program_of(body, 45, weights)
        for name, array in weights.arrays.items():
            weights.arrays[name] = np.round(array * 8) / 8
        model = compile_on(backend, program, weights, dtype, source=kind)
        seqs = make_seqs([1, 30])
        found = logits_of(model.step(batch_of([(seq, len(seq.tokens)) for seq in seqs])))
        model.close()
        return found.tobytes()

    assert results(source, transposed) == results("F32", False)


@pytest.mark.parametrize("source", ["BF16", "F16"])
@pytest.mark.parametrize(("k", "n"), SHAPES)
def test_numbers_of_16_bits_are_kept_and_multiplied_as_float32(
    backend: CpuBackend, k: int, n: int, source: TensorDtype
) -> None:
    """A matrix takes half the bytes and gives the bits of float32 weights, also where float16 is
    subnormal, infinite or no number."""
    weights = Weights()
    program = program_of(product(k, n), k, weights)
    if source == "F16":
        random = np.random.default_rng(n)
        numbers = weights.arrays["w"]
        numbers *= np.exp2(random.integers(-24, 1, numbers.shape))
        weights.arrays["w"] = numbers.astype(np.float16).astype(np.float32)
        weights.arrays["w"][0, :2] = 0.0
        weights.arrays["w"][n // 2, -1] = random.choice([np.inf, -np.inf, np.nan, 65504.0])
    found, sizes = [], []
    for kind in ("F32", source):
        model = compile_on(backend, program, weights, "float32", source=kind)
        for lengths in (LENGTHS, [1], [2, 5]):
            batch = batch_of([(seq, len(seq.tokens)) for seq in make_seqs(lengths)])
            found.append(logits_of(model.step(batch)).tobytes())
        sizes.append(model.memory().weight_bytes)
        model.close()
    assert found[:3] == found[3:]
    strips, pairs = -(-n // 32), -(-k // 2)
    assert sizes[0] - sizes[1] >= strips * 32 * (4 * k - 4 * pairs)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("act", ["silu", "gelu", "gelu_tanh", "relu"])
@pytest.mark.parametrize("n", [16, 50, 129])
def test_activations_in_the_epilogue(
    backend: CpuBackend, n: int, act: Activation, dtype: Dtype
) -> None:
    def body(x: Value, weights: Weights) -> tuple[list[Op], Value]:
        wide, active = Value("wide", n), Value("active", n)
        weight = weights.param("w", (n, 40), 40**-0.5)
        return [
            Linear(x, (wide,), weight, weights.param("b", (n,))),
            Act(wide, active, act),
        ], active

    assert_close(compile_pair(backend, body, 40, dtype), LENGTHS, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("width", [16, 33, 200])
def test_a_gate_in_the_epilogue(backend: CpuBackend, width: int, dtype: Dtype) -> None:
    def body(x: Value, weights: Weights) -> tuple[list[Op], Value]:
        gate, up, out = (Value(name, width) for name in ("gate", "up", "out"))
        both = weights.param("both", (2 * width, 72), 72**-0.5)
        return [Linear(x, (gate, up), both), Glu(gate, up, out, "silu")], out

    assert_close(compile_pair(backend, body, 72, dtype), LENGTHS, 3 * TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("factor", [1.0, 0.25])
@pytest.mark.parametrize("dim", [16, 37, 130])
def test_a_factor_and_a_residual_in_the_epilogue(
    backend: CpuBackend, dim: int, factor: float, dtype: Dtype
) -> None:
    def body(x: Value, weights: Weights) -> tuple[list[Op], Value]:
        product, scaled, out = (Value(name, dim) for name in ("product", "scaled", "out"))
        return [
            Linear(x, (product,), weights.param("w", (dim, dim), dim**-0.5)),
            Scale(product, scaled, factor),
            Add(x, scaled, out),
        ], out

    assert_close(compile_pair(backend, body, dim, dtype), LENGTHS, TOLERANCE[dtype])
