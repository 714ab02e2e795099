"""Mixtures of experts natively, held to a NumPy loop over experts and to equal bits in company."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pytest
from harness import (
    Body,
    Floats,
    Pair,
    Weights,
    assert_close,
    batch_of,
    compile_on,
    logits_of,
    make_seqs,
    program_of,
    run_both,
)

from quire.backends.base import Backend, CompiledModel, Dtype
from quire.backends.cpu import CpuBackend
from quire.backends.reference import ReferenceBackend
from quire.program import (
    Activation,
    Add,
    Experts,
    Linear,
    Op,
    Param,
    Route,
    Scale,
    SigmoidGate,
    Tensor,
    Value,
)
from quire.program.values import WeightFormat

DIM = 80
LENGTHS = [1, 3, 17, 70]
FORMATS: tuple[WeightFormat, ...] = ("dense", "int8", "int8_w8a8", "int4", "int4_w4a8")
Layout = Literal["single", "fused", "transposed"]


@pytest.fixture(params=FORMATS)
def weight_format(request: pytest.FixtureRequest) -> WeightFormat:
    found: WeightFormat = request.param
    return found


@dataclass(frozen=True)
class Mixture:
    """E experts of I numbers, k for each token; sizes that fill no strip of a packed matrix."""

    num_experts: int = 7
    width: int = 45
    top_k: int = 3
    weight_format: WeightFormat = "dense"
    layout: Layout = "single"
    biases: bool = False
    act: Activation = "silu"
    router: Literal["random", "one expert", "ties"] = "random"
    factor: float = 1.0
    weighs_inputs: bool = False

    def body(self) -> Body:
        """Router, choice, experts; a factor and a residual, which are fused."""

        def body(x: Value, weights: Weights) -> tuple[list[Op], Value]:
            logits, routes = (Value(name, self.num_experts) for name in ("choices", "routes"))
            out, scaled, total = (Value(name, DIM) for name in ("out", "scaled", "total"))
            router = weights.given("router", self._router())
            experts = self._experts(x, routes, out, weights)
            ops: list[Op] = [
                Linear(x, (logits,), router, exact=True),
                Route(logits, routes, self.top_k),
                experts,
                Scale(out, scaled, self.factor),
                Add(x, scaled, total),
            ]
            return ops, total

        return body

    def _router(self) -> Floats:
        random = np.random.default_rng(5)
        rows = random.normal(0, DIM**-0.5, (self.num_experts, DIM)).astype(np.float32)
        if self.router == "ties":
            rows[:] = rows[0]
        if self.router == "one expert":
            rows[:] = 0
        return rows

    def _experts(self, x: Value, routes: Value, out: Value, weights: Weights) -> Experts:
        random = np.random.default_rng(7)
        count, width = self.num_experts, self.width
        gate_up = random.normal(0, DIM**-0.5, (count, 2 * width, DIM)).astype(np.float32)
        gate_up[:, 3] *= 20
        gate_up[1, 4] = 0
        down = random.normal(0, width**-0.5, (count, DIM, width)).astype(np.float32)
        biases: tuple[Param | None, Param | None] = (None, None)
        if self.biases:
            biases = (
                weights.param("gate_up_bias", (count * 2 * width,)),
                weights.param("down_bias", (count * DIM,)),
            )
        return Experts(
            x, routes, out, self._param("gate_up", gate_up, 2, weights),
            self._param("down", down, 1, weights), self.top_k, self.act, *biases,
            self.weighs_inputs,
        )  # fmt: skip

    def _param(self, name: str, array: Floats, pieces: int, weights: Weights) -> Param:
        """In a layout: a tensor for each expert's gate, up and down, or one for all."""
        if self.layout == "single":
            parts = tuple(
                weights.given(f"{name}.{expert}.{piece}", rows).parts[0]
                for expert, matrix in enumerate(array)
                for piece, rows in enumerate(np.split(matrix, pieces))
            )
        else:
            transposed = self.layout == "transposed"
            held = array.swapaxes(1, 2) if transposed else array
            weights.given(name, np.ascontiguousarray(held))
            parts = (Tensor(name, held.shape, transposed),)
        return Param(name, array.shape, parts, self.weight_format)


def pair_of(backend: CpuBackend, mixture: Mixture, dtype: Dtype = "float32") -> Pair:
    return Pair(model_of(backend, mixture, dtype), model_of(ReferenceBackend(), mixture, dtype))


def model_of(backend: Backend, mixture: Mixture, dtype: Dtype = "float32") -> CompiledModel:
    weights = Weights()
    return compile_on(backend, program_of(mixture.body(), DIM, weights), weights, dtype)


def tolerance_of(weight_format: WeightFormat) -> float:
    """As of other feed-forwards: the down product's x may differ by a rounding step."""
    return {"dense": 3e-6, "int8": 5e-5, "int4": 5e-5}.get(weight_format, 1e-2)


@pytest.mark.parametrize("weighs_inputs", [False, True])
def test_the_reference_is_a_loop_over_the_experts_of_each_row(weighs_inputs: bool) -> None:
    """The formula, row by row in float64."""
    mixture = Mixture(biases=True, factor=0.5, weighs_inputs=weighs_inputs)
    weights = Weights()
    program = program_of(mixture.body(), DIM, weights)
    model = compile_on(ReferenceBackend(), program, weights)
    [seq] = make_seqs([9])
    found = logits_of(model.step(batch_of([(seq, 9)])))
    arrays = {name: array.astype(np.float64) for name, array in weights.arrays.items()}
    gate_up_bias = arrays["gate_up_bias"].reshape(7, -1)
    down_bias = arrays["down_bias"].reshape(7, -1)
    for token, row in zip(seq.tokens, found, strict=True):
        x = arrays["table"][token]
        powers = np.exp(arrays["router"] @ x)
        chosen = np.argsort(-powers)[:3]
        total = np.zeros(DIM)
        for e in sorted(chosen):
            weight = powers[e] / powers[chosen].sum()
            read = weight * x if weighs_inputs else x
            gate = arrays[f"gate_up.{e}.0"] @ read + gate_up_bias[e, :45]
            up = arrays[f"gate_up.{e}.1"] @ read + gate_up_bias[e, 45:]
            hidden = gate / (1 + np.exp(-gate)) * up
            result = arrays[f"down.{e}.0"] @ hidden + down_bias[e]
            total += result if weighs_inputs else weight * result
        wanted = x + 0.5 * total
        assert np.abs(row - wanted).max() < 1e-5 * np.abs(wanted).max()


SHAPES = [
    Mixture(factor=0.3),
    Mixture(num_experts=3, top_k=3),
    Mixture(num_experts=5, top_k=1, width=16, act="gelu_tanh"),
    Mixture(num_experts=64, top_k=8, width=33, biases=True),
    Mixture(num_experts=4, top_k=2, width=130, biases=True, act="swiglu_oai"),
    Mixture(router="one expert", top_k=1),
    Mixture(router="ties"),
    Mixture(weighs_inputs=True, biases=True, factor=0.3),
]


@pytest.mark.parametrize("mixture", SHAPES, ids=str)
def test_as_the_reference(
    backend: CpuBackend, mixture: Mixture, weight_format: WeightFormat
) -> None:
    """Ties go to the first experts, so that some have no row and some have all."""
    pair = pair_of(backend, replace(mixture, weight_format=weight_format))
    assert_close(pair, LENGTHS, tolerance_of(weight_format))


@pytest.mark.parametrize("layout", ["fused", "transposed"])
def test_any_layout_of_the_checkpoint(
    backend: CpuBackend, weight_format: WeightFormat, layout: Layout
) -> None:
    single = Mixture(num_experts=5, width=150, weight_format=weight_format)
    [seq] = make_seqs([33])
    batch = batch_of([(seq, 33)])
    expected = logits_of(model_of(backend, single).step(batch)).tobytes()
    for one in (backend, ReferenceBackend()):
        model = model_of(one, replace(single, layout=layout))
        if one is backend:
            assert logits_of(model.step(batch)).tobytes() == expected
        else:
            wanted = logits_of(model_of(one, single).step(batch))
            assert (logits_of(model.step(batch)) == wanted).all()


def test_in_bfloat16(backend: CpuBackend, weight_format: WeightFormat) -> None:
    """Not all rows: a token between two experts may choose another one."""
    pair = pair_of(backend, Mixture(weight_format=weight_format), "bfloat16")
    native, reference = run_both(pair, LENGTHS)
    scale = np.abs(reference).max(axis=1)
    errors = np.abs(native - reference).max(axis=1) / scale
    assert np.quantile(errors, 0.9) < 3e-2


ROW_COUNTS = [*range(1, 10), 12, 13, 16, 17, 24, 25, 31, 32, 33, 48, 64]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("router", ["random", "one expert"])
def test_equal_bits_for_any_number_of_rows(
    isa: str, weight_format: WeightFormat, dtype: Dtype, router: Literal["random", "one expert"]
) -> None:
    mixture = Mixture(weight_format=weight_format, router=router, top_k=2)
    model = model_of(CpuBackend(2, isa), mixture, dtype)
    [whole], [seq] = make_seqs([513]), make_seqs([513])
    expected = logits_of(model.step(batch_of([(whole, 513)])))
    cuts = [*ROW_COUNTS, 513 - sum(ROW_COUNTS)]
    parts = [logits_of(model.step(batch_of([(seq, count)]))) for count in cuts]
    assert np.concatenate(parts).tobytes() == expected.tobytes()


@pytest.mark.parametrize("threads", [1, 3])
def test_equal_bits_in_any_company(isa: str, weight_format: WeightFormat, threads: int) -> None:
    """Neighbours that go to the same experts and to others."""
    mixture = Mixture(num_experts=16, weight_format=weight_format)
    alone = model_of(CpuBackend(2, isa), mixture, "bfloat16")
    model = model_of(CpuBackend(threads, isa), mixture, "bfloat16")
    seqs = make_seqs([64, 70, 9])
    expected = logits_of(alone.step(batch_of([(seqs[1], 70)]))).tobytes()
    seqs = make_seqs([64, 70, 9])
    parts = [
        logits_of(model.step(batch_of([(seqs[0], 8), (seqs[1], count)])))[8:]
        for count in (37, 1, 1, 15, 16)
    ]
    assert np.concatenate(parts).tobytes() == expected


def test_more_pairs_than_are_worked_on_at_once(isa: str) -> None:
    """1024 rows of 16 experts are two slabs; each row is as in a step of its own."""
    mixture = Mixture(num_experts=20, top_k=16, width=16)
    model = model_of(CpuBackend(2, isa), mixture)
    whole, parts = make_seqs([512, 512]), make_seqs([512, 512])
    together = logits_of(model.step(batch_of([(seq, 512) for seq in whole])))
    apart = [logits_of(model.step(batch_of([(seq, 512)]))) for seq in parts]
    assert together.tobytes() == np.concatenate(apart).tobytes()


def test_every_tier_is_close_to_every_other(isa: str, weight_format: WeightFormat) -> None:
    mixture = Mixture(weight_format=weight_format)
    [seq] = make_seqs([70])
    batch = batch_of([(seq, 70)])
    rows = [
        logits_of(model_of(CpuBackend(2, tier), mixture).step(batch)) for tier in (isa, "generic")
    ]
    assert np.abs(rows[0] - rows[1]).max() < tolerance_of(weight_format) * np.abs(rows[1]).max()


def test_what_is_not_finite_stays_in_its_row(
    backend: CpuBackend, weight_format: WeightFormat
) -> None:
    for one in (backend, ReferenceBackend()):
        weights = Weights()
        mixture = Mixture(weight_format=weight_format)
        program = program_of(mixture.body(), DIM, weights)
        clean = compile_on(one, program, weights)
        [seq] = make_seqs([5])
        seq.tokens[:] = [1, 2, 4, 3, 5]
        wanted = logits_of(clean.step(batch_of([(seq, 5)])))
        weights.arrays["table"][[2, 3], 9] = np.nan, np.inf
        [again] = make_seqs([5])
        again.tokens[:] = seq.tokens
        rows = logits_of(compile_on(one, program, weights).step(batch_of([(again, 5)])))
        assert np.isnan(rows).all(axis=1).tolist() == [False, True, False, True, False]
        assert rows[[0, 2, 4]].tobytes() == wanted[[0, 2, 4]].tobytes()


def test_weights_that_are_not_finite_are_named(
    backend: CpuBackend, caplog: pytest.LogCaptureFixture
) -> None:
    for layout, bad in (("single", "gate_up.2.1"), ("fused", "gate_up")):
        weights = Weights()
        program = program_of(Mixture(layout=layout).body(), DIM, weights)  # type: ignore[arg-type]
        weights.arrays[bad][..., -1, 5] = np.nan
        for one in (backend, ReferenceBackend()):
            caplog.clear()
            compile_on(one, program, weights)
            assert bad in caplog.text


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("groups", [None, (4, 2, 2), (4, 1, 1)])
@pytest.mark.parametrize("biased", [True, False])
def test_routes(
    backend: CpuBackend,
    score: Literal["softmax", "sigmoid"],
    normalise: bool,
    groups: tuple[int, int, int] | None,
    biased: bool,
) -> None:
    """E = 24 of which 3 are chosen, against a loop over rows."""

    def body(x: Value, weights: Weights) -> tuple[list[Op], Value]:
        routes = Value("routes", 24)
        bias = weights.param("bias", (24,), 0.3) if biased else None
        num, top, best = groups or (1, 1, 1)
        op = Route(x, routes, 3, score, normalise, bias, num, top, best, 1e-20, 2.5)
        return [op], routes

    weights = Weights()
    program = program_of(body, 24, weights)
    [seq] = make_seqs([16])
    batch = batch_of([(seq, 16)])
    found = [
        logits_of(compile_on(one, program, weights).step(batch))
        for one in (backend, ReferenceBackend())
    ]
    for token, native, reference in zip(seq.tokens, *found, strict=True):
        logits = weights.arrays["table"][token].astype(np.float64)
        wanted = expected_routes(logits, weights.arrays.get("bias"), score, normalise, groups)
        assert np.allclose(reference, wanted, rtol=1e-6, atol=0)
        assert np.allclose(native, wanted, rtol=2e-6, atol=0)


def expected_routes(
    logits: np.ndarray,
    bias: Floats | None,
    score: str,
    normalise: bool,
    groups: tuple[int, int, int] | None,
) -> np.ndarray:
    powers = np.exp(logits)
    scores = powers / powers.sum() if score == "softmax" else 1 / (1 + np.exp(-logits))
    choice = logits if bias is None else scores + bias
    allowed = set(range(24))
    if groups:
        num, top, best = groups
        size = 24 // num
        sums = [sum(sorted(choice[g * size : (g + 1) * size])[-best:]) for g in range(num)]
        kept = sorted(range(num), key=lambda g: -sums[g])[:top]
        allowed = {e for e in allowed if e // size in kept}
    chosen = sorted(allowed, key=lambda e: -choice[e])[:3]
    weights = np.zeros(24)
    weights[chosen] = scores[chosen]
    if normalise:
        weights /= weights.sum()
    return weights * 2.5


@pytest.mark.parametrize("jitter", [0.01, 0.2, 3.0])
def test_routes_of_the_sparsemixer(backend: CpuBackend, jitter: float) -> None:
    """Against a loop over rows, one of them of zeros."""

    def body(x: Value, weights: Weights) -> tuple[list[Op], Value]:  # noqa: ARG001
        routes = Value("routes", 24)
        return [Route(x, routes, 2, "sparsemixer", jitter=jitter)], routes

    weights = Weights()
    program = program_of(body, 24, weights)
    [seq] = make_seqs([40])
    weights.arrays["table"][seq.tokens[0]] = 0
    wanted = np.zeros((40, 24))
    for row, logits in zip(wanted, weights.arrays["table"][seq.tokens], strict=True):
        left = dict(enumerate(logits.astype(np.float64)))
        for _ in range(2):
            best = max(left, key=left.__getitem__)
            most = left[best]
            near = [s for s in left.values() if most - s <= 2 * jitter * max(abs(s), most)]
            row[best] = 1 / np.exp(np.array(near) - most).sum()
            del left[best]
    for one in (backend, ReferenceBackend()):
        [again] = make_seqs([40])
        again.tokens[:] = seq.tokens
        found = logits_of(compile_on(one, program, weights).step(batch_of([(again, 40)])))
        assert np.allclose(found, wanted, rtol=2e-6, atol=0)


def test_equal_choices_go_to_the_lower_numbers(backend: CpuBackend) -> None:
    def body(x: Value, weights: Weights) -> tuple[list[Op], Value]:  # noqa: ARG001
        routes = Value("routes", 20)
        return [Route(x, routes, 3)], routes

    weights = Weights()
    program = program_of(body, 20, weights)
    rows = np.zeros((96, 20), np.float32)
    rows[1, 4:] = 1.0
    rows[2, [19, 7, 3]] = 2.0, 1.0, 1.0
    rows[3] = -np.arange(20)
    weights.arrays["table"][:] = rows
    for one in (backend, ReferenceBackend()):
        [seq] = make_seqs([4])
        seq.tokens[:] = [0, 1, 2, 3]
        found = logits_of(compile_on(one, program, weights).step(batch_of([(seq, 4)])))
        assert [np.flatnonzero(row).tolist() for row in found] == [
            [0, 1, 2], [4, 5, 6], [3, 7, 19], [0, 1, 2],
        ]  # fmt: skip


def test_a_sigmoid_gate(backend: CpuBackend) -> None:
    def body(x: Value, weights: Weights) -> tuple[list[Op], Value]:
        gate, out = Value("gate", 1), Value("out", DIM)
        return [
            Linear(x, (gate,), weights.param("gate", (1, DIM)), exact=True),
            SigmoidGate(x, gate, out),
        ], out

    weights = Weights()
    program = program_of(body, DIM, weights)
    native, reference = (compile_on(one, program, weights) for one in (backend, ReferenceBackend()))
    assert_close(Pair(native, reference), LENGTHS, 3e-6)
