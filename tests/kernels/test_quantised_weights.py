"""The int8 formats natively, held to the reference's definition of them, and to equal bits."""

from __future__ import annotations

from dataclasses import replace

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
    extreme_rows,
    logits_of,
    make_seqs,
    program_of,
)
from small_model import OPTIONS, RandomStore, one_request, small_program

from quire.backends.base import CompiledModel, Dtype, KVCacheSpec
from quire.backends.cpu import CpuBackend
from quire.backends.reference import ReferenceBackend
from quire.program import Glu, Linear, Logits, Op, Param, Value, keep_all
from quire.program.passes import quantise_weights
from quire.program.values import WeightFormat

DIM = 80
WIDE = 200
LENGTHS = [1, 3, 17, 70]


@pytest.fixture(params=["int8", "int8_w8a8", "int4", "int4_w4a8"])
def weight_format(request: pytest.FixtureRequest) -> WeightFormat:
    found: WeightFormat = request.param
    return found


def feed_forward(weight_format: WeightFormat, *, transposed: bool = False) -> Body:
    """A fused gate|up and a projection with a bias, sizes that fill no strip; outlier columns."""

    def body(x: Value, weights: Weights) -> tuple[list[Op], Value]:
        random = np.random.default_rng(3)
        gate, up, hidden = (Value(name, WIDE) for name in ("gate", "up", "hidden"))
        out = Value("out", 50)
        both = random.normal(0, DIM**-0.5, (2 * WIDE, DIM)).astype(np.float32)
        both[:, 5] *= 20
        both[7] = 0
        down = weights.given(
            "down", random.normal(0, WIDE**-0.5, (50, WIDE)).astype(np.float32), transposed
        )
        ops: list[Op] = [
            Linear(x, (gate, up), of(weights.given("both", both), weight_format)),
            Glu(gate, up, hidden, "silu"),
            Linear(hidden, (out,), of(down, weight_format), weights.param("bias", (50,))),
        ]
        return ops, out

    return body


def of(param: Param, weight_format: WeightFormat) -> Param:
    return replace(param, format=weight_format)


def one_linear(weight_format: WeightFormat, k: int, n: int) -> Body:
    def body(x: Value, weights: Weights) -> tuple[list[Op], Value]:
        out = Value("out", n)
        return [Linear(x, (out,), of(weights.param("w", (n, k), k**-0.5), weight_format))], out

    return body


def pair_of(
    backend: CpuBackend, body: Body, dim: int, dtype: Dtype = "float32", seed: int = 0
) -> Pair:
    weights = Weights(seed)
    program = program_of(body, dim, weights)
    return Pair(
        compile_on(backend, program, weights, dtype),
        compile_on(ReferenceBackend(), program, weights, dtype),
    )


@pytest.mark.parametrize(("k", "n"), [(16, 16), (DIM, 33), (320, 160), (1037, 48), (65, 515)])
def test_a_product_is_the_definition(
    backend: CpuBackend, weight_format: WeightFormat, k: int, n: int
) -> None:
    """Both start from the same numbers, so that the integers are equal: only sums are rounded."""
    assert_close(pair_of(backend, one_linear(weight_format, k, n), k), LENGTHS, 3e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("k", [1, 2, 5, 70, 1037])
def test_rows_with_outliers(
    backend: CpuBackend, weight_format: WeightFormat, k: int, dtype: Dtype
) -> None:
    """None to seven columns that are up to a thousand times larger than the others: in the same
    places of rows that follow each other and in others, of equal size, and the last one."""
    weights = Weights()
    program = program_of(one_linear(weight_format, k, 50), k, weights)
    random = np.random.default_rng(4)
    table = weights.arrays["table"]
    for row, numbers in enumerate(table):
        columns = random.choice(k, min(k, row % 8), replace=False)
        if row % 2:
            columns = np.array([k // 2, k // 3, k - 1][: row % 4])
        numbers[columns] = np.float32(2.0 ** (row % 11)) * (1 if row % 3 else numbers[columns])
    native, reference = (
        compile_on(one, program, weights, dtype) for one in (backend, ReferenceBackend())
    )
    assert_close(Pair(native, reference), LENGTHS, 3e-6 if dtype == "float32" else 6e-3)


@pytest.mark.parametrize(("sign", "k"), [(1, 256), (-1, 256), (1, 2304), (-1, 2304)])
def test_the_largest_sums_do_not_overflow(
    backend: CpuBackend, weight_format: WeightFormat, sign: int, k: int
) -> None:
    """Weights and rows at their ends, of one sign, but for one weight in each group."""
    n = 40
    weights = Weights()
    program = program_of(one_linear(weight_format, k, n), k, weights)
    ends = weights.arrays["w"]
    ends[:] = sign
    ends[:, 31::32] = 0
    ends[1::2, 30::32] = -sign / 4
    for row, numbers in enumerate(extreme_rows(k)):
        weights.arrays["table"][row::5] = numbers
    native, reference = (compile_on(one, program, weights) for one in (backend, ReferenceBackend()))
    assert_close(Pair(native, reference), LENGTHS, 3e-5)


@pytest.mark.parametrize("transposed", [False, True])
def test_a_feed_forward(backend: CpuBackend, weight_format: WeightFormat, transposed: bool) -> None:
    """The second product's x differs in its last bits, which may move it by a step: 1e-2 of the
    largest in 8 bits, a 256th of that in 16."""
    tolerance = 5e-5 if weight_format in ("int8", "int4") else 1e-2
    body = feed_forward(weight_format, transposed=transposed)
    assert_close(pair_of(backend, body, DIM), LENGTHS, tolerance)


def test_in_bfloat16(backend: CpuBackend, weight_format: WeightFormat) -> None:
    body = feed_forward(weight_format)
    assert_close(pair_of(backend, body, DIM, "bfloat16"), LENGTHS, 3e-2)


def test_a_tied_head_is_looked_up_as_it_is_multiplied(
    backend: CpuBackend, weight_format: WeightFormat
) -> None:
    """The whole small model: transposed weights, q|k|v, a table that is the head, too."""
    program = quantise_weights(small_program(), weight_format)
    spec = KVCacheSpec(4, 16, "float32", keep_all(program))
    native, reference = (
        logits_of(
            one.compile(program, RandomStore(program), spec, OPTIONS).step(
                one_request([3, 1, 4, 1, 5, 9, 2, 6], [2])
            )
        )
        for one in (backend, ReferenceBackend())
    )
    scale = np.abs(reference).max()
    assert np.abs(native - reference).max() / scale < (
        1e-4 if weight_format in ("int8", "int4") else 5e-2
    )


def test_the_plan_counts_the_bytes_that_are_held(
    backend: CpuBackend, weight_format: WeightFormat
) -> None:
    for tied in (True, False):
        program = quantise_weights(small_program(tied=tied), weight_format)
        spec = KVCacheSpec(4, 16, "float32", keep_all(program))
        model = backend.compile(program, RandomStore(program), spec, OPTIONS)
        held, planned = model.memory().weight_bytes, backend.weight_bytes(program, "float32")
        # Every weight begins at a cache line.
        assert planned <= held <= planned + 64 * len(list(program.params()))
        model.close()


def test_what_is_not_finite_stays_in_its_row(
    backend: CpuBackend, weight_format: WeightFormat
) -> None:
    weights = Weights()
    program = program_of(one_linear(weight_format, DIM, 33), DIM, weights)
    weights.arrays["table"][[2, 3], 9] = np.nan, np.inf
    model = compile_on(backend, program, weights)
    [seq] = make_seqs([5])
    seq.tokens[:] = [1, 2, 4, 3, 5]
    rows = logits_of(model.step(batch_of([(seq, 5)])))
    assert np.isnan(rows).all(axis=1).tolist() == [False, True, False, True, False]
    assert np.isfinite(rows[[0, 2, 4]]).all()


def test_a_weight_that_is_not_finite_spoils_its_output_alone(
    backend: CpuBackend, weight_format: WeightFormat
) -> None:
    """Seen in the head, after which nothing mixes the outputs."""
    weights = Weights()
    program = program_of(lambda x, _: ([], x), DIM, weights)
    *ops, head = program.ops
    assert isinstance(head, Logits)
    program = replace(program, ops=(*ops, replace(head, weight=of(head.weight, weight_format))))
    weights.arrays["identity"][[4, 20], 9] = np.nan, np.inf
    [seq] = make_seqs([5])
    rows = logits_of(compile_on(backend, program, weights).step(batch_of([(seq, 5)])))
    assert np.isnan(rows).all(axis=0).nonzero()[0].tolist() == [4, 20]
    assert np.isfinite(np.delete(rows, [4, 20], axis=1)).all()


ROW_COUNTS = [*range(1, 10), 12, 13, 16, 17, 24, 25, 31, 32, 33, 48, 64]


def test_equal_bits_for_any_number_of_rows(isa: str, weight_format: WeightFormat) -> None:
    """K spans several blocks of every kernel, and the last one is not full."""
    weights = Weights()
    program = program_of(one_linear(weight_format, 1111, 70), 1111, weights)
    model = compile_on(CpuBackend(2, isa), program, weights)
    [whole], [seq] = make_seqs([513]), make_seqs([513])
    expected = logits_of(model.step(batch_of([(whole, 513)])))
    cuts = [*ROW_COUNTS, 513 - sum(ROW_COUNTS)]
    parts = [logits_of(model.step(batch_of([(seq, count)]))) for count in cuts]
    assert np.concatenate(parts).tobytes() == expected.tobytes()


def test_equal_bits_of_sums_that_no_float_holds(isa: str, weight_format: WeightFormat) -> None:
    """Few rows and many may be multiplied in different ways."""
    k, weights = 2304, Weights()
    program = program_of(one_linear(weight_format, k, 40), k, weights)
    random = np.random.default_rng(4)
    weights.arrays["w"][:] = random.uniform(0.9, 1, weights.arrays["w"].shape)
    weights.arrays["table"][:] = random.uniform(0.9, 1, weights.arrays["table"].shape)

    def product(tier: str, cuts: list[int]) -> bytes:
        model = compile_on(CpuBackend(2, tier), program, weights)
        [seq] = make_seqs([30])
        parts = [logits_of(model.step(batch_of([(seq, count)]))) for count in cuts]
        return np.concatenate(parts).tobytes()

    expected = product("generic", [30])
    assert product(isa, [30]) == expected
    assert product(isa, [1, 2, 1, 3, 23]) == expected


def test_every_tier_has_the_same_sums(isa: str, weight_format: WeightFormat) -> None:
    """Integers, the same scales, the same last multiplications: the very bits."""

    def product(tier: str) -> bytes:
        weights = Weights()
        program = program_of(one_linear(weight_format, 1333, 70), 1333, weights)
        model = compile_on(CpuBackend(2, tier), program, weights)
        return logits_of(model.step(batch_of([(make_seqs([70])[0], 70)]))).tobytes()

    assert product(isa) == product("generic")


@pytest.mark.parametrize("threads", [1, 3])
def test_equal_bits_in_any_company(isa: str, weight_format: WeightFormat, threads: int) -> None:
    def whole_and_parts(model: CompiledModel, cuts: list[int]) -> Floats:
        """The second of three requests, `cuts` tokens at a time."""
        seqs = make_seqs([64, 70, 9])
        parts = []
        for count in cuts:
            work = [(seqs[0], 8), (seqs[1], count)] if count < 70 else [(seqs[1], count)]
            out = logits_of(model.step(batch_of(work)))
            parts.append(out[-count:])
        return np.concatenate(parts)

    weights = Weights()
    program = program_of(feed_forward(weight_format), DIM, weights)
    model = compile_on(CpuBackend(threads, isa), program, weights, "bfloat16")
    alone = compile_on(CpuBackend(2, isa), program, weights, "bfloat16")
    expected = whole_and_parts(alone, [70]).tobytes()
    assert whole_and_parts(model, [70]).tobytes() == expected
    assert whole_and_parts(model, [37, 1, 1, 15, 16]).tobytes() == expected
