"""A NaN or an infinity stays with whoever sees it: not a bit of anything else changes.

Token 15 is poisoned, and in nobody's tokens but where a test puts it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from harness import (
    BLOCK_SIZE,
    NUM_BLOCKS,
    Body,
    Floats,
    Seq,
    Weights,
    batch_of,
    compile_on,
    logits_of,
    make_seqs,
    program_of,
)
from sampling_columns import SamplingRow, build_columns
from test_attention import DIM, Shape

from quire.backends.base import CompiledModel, Dtype
from quire.backends.cpu import CpuBackend
from quire.program import ActivationBits, Glu, Linear, Logits, Op, Param, Program, Value
from quire.program.values import WeightFormat
from quire.sampling.reference import not_finite
from quire.units import round_up
from quire.weights import TensorDtype

POISON = 15
LENGTH = 600
NUMBERS: list[tuple[Dtype, str, ActivationBits]] = [
    ("float32", "float32", 16), ("bfloat16", "bfloat16", 16), ("float32", "bfloat16", 16),
    ("bfloat16", "int8", 16), ("bfloat16", "int8", 8), ("bfloat16", "int4", 16),
    ("bfloat16", "int4", 8),
]  # fmt: skip
SHAPES = [Shape(), Shape(window=20), Shape(heads=6, kv_heads=1, head_dim=80, window=270)]
WHOLE_NAN, ONE_INF = "a row of NaN", "one infinity"
PATTERNS = {"NaN": 0xFF, "infinity": 0x7F}


@pytest.fixture(scope="module", params=SHAPES, ids=str)
def shape(request: pytest.FixtureRequest) -> Shape:
    found: Shape = request.param
    return found


@pytest.fixture(scope="module", params=NUMBERS, ids=lambda found: "-".join(map(str, found)))
def numbers(request: pytest.FixtureRequest) -> tuple[Dtype, str, ActivationBits]:
    found: tuple[Dtype, str, ActivationBits] = request.param
    return found


@pytest.fixture(scope="module", params=[WHOLE_NAN, ONE_INF])
def model(
    backend: CpuBackend,
    shape: Shape,
    numbers: tuple[Dtype, str, ActivationBits],
    request: pytest.FixtureRequest,
) -> CompiledModel:
    dtype, kv_dtype, bits = numbers
    weights = Weights(7)
    program = program_of(replace(shape, activation_bits=bits).body(), DIM, weights)
    if request.param == WHOLE_NAN:
        weights.arrays["table"][POISON] = np.nan
    else:
        weights.arrays["table"][POISON, 3] = np.inf
    return compile_on(backend, program, weights, dtype, kv_dtype=kv_dtype)


def healthy(lengths: Sequence[int]) -> list[Seq]:
    """Requests without the poisoned token."""
    seqs = make_seqs(lengths)
    for seq in seqs:
        seq.tokens %= POISON
    return seqs


def in_pieces(model: CompiledModel, seq: Seq, counts: Sequence[int]) -> Floats:
    seq.computed = 0
    return np.concatenate([logits_of(model.step(batch_of([(seq, n)]))) for n in counts])


def test_a_poisoned_token_reaches_those_who_see_it(model: CompiledModel, shape: Shape) -> None:
    """In one step, in pieces, and in single tokens across the border of a chunk."""
    [seq] = healthy([LENGTH])
    expected = in_pieces(model, seq, [LENGTH])
    # Two layers: those who see it, and those who see them.
    reach = LENGTH if shape.window is None else 2 * (shape.window - 1) + 1
    for place in (0, 300, 511):
        [seq] = healthy([LENGTH])
        seq.tokens[place] = POISON
        sees = np.zeros(LENGTH, bool)
        sees[place : place + reach] = True
        for counts in ([LENGTH], [290, 20, 290], [509, 1, 1, 1, 88]):
            found = in_pieces(model, seq, counts)
            assert (~np.isfinite(found)).any(axis=1).tolist() == sees.tolist()
            assert found[~sees].tobytes() == expected[~sees].tobytes()


def test_the_neighbours_of_a_poisoned_request(model: CompiledModel) -> None:
    """In one step: prompts, pieces of prompts and single tokens, before it and behind it."""
    lengths = [40, 33, 280, 7, 150]

    def run(poisoned: bool) -> list[Floats]:
        seqs = healthy(lengths)
        if poisoned:
            seqs[2].tokens[[3, 130, 279]] = POISON
        parts: list[list[Floats]] = [[] for _ in seqs]
        for counts in ([39, 0, 100, 1, 20], [1, 33, 150, 1, 100], [0, 0, 30, 5, 30]):
            work = [(index, n) for index, n in enumerate(counts) if n]
            logits = logits_of(model.step(batch_of([(seqs[index], n) for index, n in work])))
            ends = np.cumsum([n for _, n in work])[:-1]
            for (index, _), part in zip(work, np.split(logits, ends), strict=True):
                parts[index].append(part)
        return [np.concatenate(part) for part in parts]

    expected, found = run(poisoned=False), run(poisoned=True)
    assert not np.isfinite(found[2]).all()
    for index in (0, 1, 3, 4):
        assert found[index].tobytes() == expected[index].tobytes()


@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
def test_what_an_earlier_owner_left_in_the_blocks(model: CompiledModel, pattern: int) -> None:
    """All blocks hold what is not finite; a request grows in them, alone and beside a prompt."""

    def run(fill: int) -> list[Floats]:
        [seq, other] = healthy([LENGTH, 70])
        every = np.arange(NUM_BLOCKS, dtype=np.int32)
        data = np.full((NUM_BLOCKS, model.read_blocks(every[:1]).shape[1]), fill, np.uint8)
        if fill == PATTERNS["infinity"]:
            data[:, 0::2] = 0x80  # 0x7f80: an infinity in bfloat16, a NaN in float32
        model.write_blocks(every, data)
        found = [logits_of(model.step(batch_of([(seq, 250)])))]
        found += [logits_of(model.step(batch_of([(seq, 1)]))) for _ in range(9)]
        found.append(logits_of(model.step(batch_of([(other, 69), (seq, 1)]))))
        found.append(logits_of(model.step(batch_of([(seq, 37), (other, 1)]))))
        return found

    for found, expected in zip(run(pattern), run(0), strict=True):
        assert np.isfinite(expected).all()
        assert found.tobytes() == expected.tobytes()


def test_keys_alone_are_noticed(
    model: CompiledModel, shape: Shape, numbers: tuple[Dtype, str, ActivationBits]
) -> None:
    """A NaN score must not become a weight of zero, which would answer without the token."""
    [seq] = healthy([40])
    in_pieces(model, seq, [30])
    block = seq.blocks[29 // BLOCK_SIZE :][:1]
    data = model.read_blocks(block)
    head = data.reshape(2, shape.kv_heads, -1)[0, 0]  # of layer 0 and head 0
    # K comes first. In int4 it has 5 bits and V 4, of heads that are padded to 32, and scales.
    dim = round_up(shape.head_dim, 32)
    share = (5 * dim + 32) / (9 * dim + 64) if numbers[1] == "int4" else 1 / 2
    head[: round(len(head) * share)] = 0xFF
    model.write_blocks(block, data)
    assert not np.isfinite(logits_of(model.step(batch_of([(seq, 1)])))).all()
    assert not np.isfinite(logits_of(model.step(batch_of([(seq, 9)])))).all()


FORMATS: list[WeightFormat] = ["dense", "int8", "int8_w8a8", "int4", "int4_w4a8"]


@pytest.mark.parametrize("weight_format", FORMATS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_of_one_product(
    backend: CpuBackend, weight_format: WeightFormat, dtype: Dtype
) -> None:
    """Poisoned rows anywhere in the tiles, and tiles that are not full."""
    weights = Weights()

    def body(x: Value, made: Weights) -> tuple[list[Op], Value]:
        weight = replace(made.param("w", (70, 200), 0.1), format=weight_format)
        return [Linear(x, (out := Value("out", 70),), weight)], out

    program = program_of(body, 200, weights)
    weights.arrays["table"][POISON, 150] = np.nan
    weights.arrays["table"][POISON - 1] = np.inf
    model = compile_on(backend, program, weights, dtype)
    random = np.random.default_rng(2)
    for count in (1, 2, 5, 15, 17, 33, 70, 300):
        [seq] = make_seqs([count])
        seq.tokens %= POISON - 1
        expected = in_pieces(model, seq, [count])
        assert np.isfinite(expected).all()
        is_bad = random.random(count) < 0.3
        is_bad[-1] = True
        seq.tokens[is_bad] = random.integers(POISON - 1, POISON + 1, is_bad.sum())
        found = in_pieces(model, seq, [count])
        assert (~np.isfinite(found)).any(axis=1).tolist() == is_bad.tolist()
        assert found[~is_bad].tobytes() == expected[~is_bad].tobytes()


def test_rows_that_are_no_distribution_are_told(backend: CpuBackend) -> None:
    """Logits that overflow: +infinity tells, -infinity does not unless all are."""
    weights = Weights(1)
    program = program_of(lambda x, _: ([], x), 32, weights)
    last = program.ops[-1]
    assert isinstance(last, Logits)
    table = weights.arrays["table"]
    table[:16, :2] = [[0, 0], [9, 0], [-9, 0], [0, 9], [0, -9], [9, -9], [-9, 9], [-9, -9]] * 2
    table[7, 5] = np.nan
    head = np.random.default_rng(3).normal(0, 0.2, (3000, 32)).astype(np.float32)
    head[1700, 0] = 3e38
    head[:, 1] = 3e38
    wide = Logits(last.x, Value("wide", 3000), weights.given("head", head))
    model = compile_on(backend, Program("wide", (*program.ops[:-1], wide)), weights)
    [seq] = make_seqs([100])
    rows = [SamplingRow(0.8 * (i % 2), seed=i, num_logprobs=3) for i in range(100)]
    batch = batch_of([(seq, 100)], build_columns(rows))
    output = model.step(batch)
    assert output.not_finite is not None
    assert output.logprobs is not None
    is_bad = output.not_finite
    assert is_bad.tolist() == not_finite(logits_of(output)).tolist()
    told = {int(token) for token in seq.tokens[is_bad]}
    assert told == {1, 3, 4, 5, 6, 7, 9, 11, 12, 13, 14, 15}
    assert (output.logprobs.token_ids[is_bad] == -1).all()
    assert (output.logprobs.token_ids[~is_bad] >= 0).all()
    assert not np.isnan(output.logprobs.logprobs).any()
    # Without them the others choose the same.
    batch.logits_rows = np.flatnonzero(~is_bad).astype(np.int32)
    batch.sampling = build_columns([row for row, bad in zip(rows, is_bad, strict=True) if not bad])
    alone = model.step(batch)
    assert alone.sampled.tolist() == output.sampled[~is_bad].tolist()
    assert alone.logprobs is not None
    assert alone.logprobs.logprobs.tobytes() == output.logprobs.logprobs[~is_bad].tobytes()


def feed_forward(weight_format: WeightFormat) -> Body:
    """gate|up of two tensors, and a projection that the checkpoint holds transposed."""

    def body(x: Value, weights: Weights) -> tuple[list[Op], Value]:
        gate, up, hidden = (Value(name, 90) for name in ("gate", "up", "hidden"))
        out = Value("out", 50)
        parts = tuple(weights.param(name, (90, DIM)).parts[0] for name in ("w.gate", "w.up"))
        random = np.random.default_rng(4).normal(0, 0.1, (50, 90)).astype(np.float32)
        down = weights.given("w.down", random, transposed=True)
        return [
            Linear(x, (gate, up), Param("both", (180, DIM), parts, format=weight_format)),
            Glu(gate, up, hidden, "silu"),
            Linear(hidden, (out,), replace(down, format=weight_format), weights.param("b", (50,))),
        ], out

    return body


@pytest.mark.parametrize("weight_format", FORMATS)
@pytest.mark.parametrize("source", ["F32", "BF16", "F16"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_loading_finds_the_tensors_that_are_not_finite(
    backend: CpuBackend,
    weight_format: WeightFormat,
    source: TensorDtype,
    dtype: Dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[str] = []
    monkeypatch.setattr(
        "quire.backends.cpu.backend.warn_not_finite", lambda _, names: found.extend(names)
    )
    weights = Weights()
    program = program_of(feed_forward(weight_format), DIM, weights)
    random = np.random.default_rng(5)
    names = ["table", "w.gate", "w.up", "w.down", "b", "identity"]
    for poisoned in [[], *([name] for name in names), names]:
        changed = Weights()
        changed.arrays = {name: array.copy() for name, array in weights.arrays.items()}
        for name in poisoned:
            place = tuple(random.integers(0, size) for size in changed.arrays[name].shape)
            changed.arrays[name][place] = random.choice([np.nan, np.inf, -np.inf])
        found.clear()
        compile_on(backend, program, changed, dtype, source=source).close()
        assert sorted(found) == sorted(poisoned)


def test_a_number_too_large_for_bfloat16_counts_as_it_is_held(
    backend: CpuBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []
    monkeypatch.setattr(
        "quire.backends.cpu.backend.warn_not_finite", lambda _, names: found.extend(names)
    )
    weights = Weights()
    program = program_of(feed_forward("dense"), DIM, weights)
    weights.arrays["w.up"][3, 5] = 3.4e38
    compile_on(backend, program, weights, "float32").close()
    assert found == []
    compile_on(backend, program, weights, "bfloat16").close()
    assert found == ["w.up"]
