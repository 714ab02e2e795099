"""Native sampling against quire.sampling.reference, on logits of many shapes."""

from __future__ import annotations

import numpy as np
import pytest
from harness import Weights, batch_of, compile_on, logits_of, make_seqs, program_of

from quire.backends.base import CompiledModel, SamplingColumns
from quire.backends.cpu import CpuBackend, load
from quire.errors import BackendError
from quire.program import Logits, Program, Value
from quire.sampling.columns import COLUMNS
from quire.sampling.reference import logprobs, sample

ROWS = 40
VOCAB = 5000


@pytest.fixture(scope="module", params=[0.0, 0.3, 3.0], ids=["equal", "flat", "peaked"])
def model(backend: CpuBackend, request: pytest.FixtureRequest) -> CompiledModel:
    """Logits with a deviation of about `param`; 0: all alike, so that every choice is a tie."""
    weights = Weights(1)
    program = program_of(lambda x, _: ([], x), 32, weights)
    head = weights.param("head", (VOCAB, 32), request.param * 32**-0.5)
    last = program.ops[-1]
    assert isinstance(last, Logits)
    logits = Logits(last.x, Value("wide", VOCAB), head)
    vocab = Program("sampling", (*program.ops[:-1], logits))
    return compile_on(backend, vocab, weights)


def columns(**changes: object) -> SamplingColumns:
    base = SamplingColumns(
        temperature=np.full(ROWS, 0.8, np.float32),
        seeds=np.arange(ROWS, dtype=np.uint64) * np.uint64(7919),
        counters=np.arange(ROWS, dtype=np.uint64) + np.uint64(100),
    )
    for name, value in changes.items():
        setattr(base, name, value)
    return base


def biased(value: float) -> dict[str, object]:
    """Some ids of every row, one of them twice."""
    ids = np.tile(np.array([3, 17, 17, 4000], np.int32), ROWS)
    starts = np.arange(ROWS + 1, dtype=np.int32) * 4
    values = np.full(len(ids), value, np.float32)
    return {"bias_starts": starts, "bias_ids": ids, "bias_values": values}


def floats(value: float) -> object:
    return np.full(ROWS, value, np.float32)


def ints(*values: int) -> object:
    return np.resize(np.array(values, np.int32), ROWS)


CASES: dict[str, dict[str, object]] = {
    "greedy": {"temperature": floats(0.0)},
    "plain": {},
    "hot": {"temperature": floats(5.0)},
    "nearly greedy": {"temperature": floats(1e-3)},
    "top_k": {"top_k": ints(1, 2, 40, 2000, 4999, 0, 9000)},
    "top_p": {"top_p": np.resize(np.array([0.05, 0.5, 0.95, 1.0], np.float32), ROWS)},
    "min_p": {"min_p": np.resize(np.array([0.0, 0.1, 0.9, 1.0], np.float32), ROWS)},
    "all": {"top_k": ints(50, 0, 3000), "top_p": floats(0.8), "min_p": floats(0.02)},
    "forbidden": biased(-np.inf),
    "favoured": {**biased(4.0), "temperature": floats(0.0)},
}


@pytest.mark.parametrize("case", CASES)
def test_chooses_what_the_reference_chooses(model: CompiledModel, case: str) -> None:
    wanted = columns(**CASES[case], num_logprobs=ints(-1, 0, 1, 5, 20))
    [seq] = make_seqs([ROWS])
    output = model.step(batch_of([(seq, ROWS)], wanted))
    logits = logits_of(output)
    expected = sample(logits, wanted)
    differing = np.flatnonzero(output.sampled != expected)
    # A sum in another order may round across a boundary; with 53 random bits that is rare.
    assert len(differing) <= 1, (case, output.sampled[differing], expected[differing])
    found, reference = output.logprobs, logprobs(logits, output.sampled, wanted)
    assert found is not None
    assert reference is not None
    assert np.array_equal(found.token_ids, reference.token_ids)
    assert np.array_equal(found.sampled_ranks, reference.sampled_ranks)
    np.testing.assert_allclose(found.logprobs, reference.logprobs, atol=2e-6)
    np.testing.assert_allclose(found.sampled, reference.sampled, atol=2e-6)


def test_only_allowed_tokens_are_chosen(model: CompiledModel) -> None:
    allowed = {5, 6, 1234}
    banned = np.array([i for i in range(VOCAB) if i not in allowed], np.int32)
    starts = np.array([0] + [len(banned)] * ROWS, np.int32)
    wanted = columns(
        bias_starts=starts, bias_ids=banned, bias_values=np.full(len(banned), -np.inf, np.float32)
    )
    [seq] = make_seqs([ROWS])
    output = model.step(batch_of([(seq, ROWS)], wanted))
    assert int(output.sampled[0]) in allowed


def test_a_row_samples_the_same_in_any_batch(model: CompiledModel) -> None:
    wanted = columns(top_p=floats(0.9))
    seqs = make_seqs([ROWS, ROWS])
    together = model.step(batch_of([(seqs[0], ROWS)], wanted)).sampled
    for row in (0, 7, 39):
        seq = make_seqs([ROWS])[0]
        batch = batch_of([(seq, ROWS)], None)
        batch.logits_rows = np.array([row], np.int32)
        batch.sampling = SamplingColumns(
            temperature=wanted.temperature[:1],
            top_p=np.full(1, 0.9, np.float32),
            seeds=wanted.seeds[row : row + 1],
            counters=wanted.counters[row : row + 1],
        )
        assert model.step(batch).sampled[0] == together[row]


def test_the_native_library_has_every_column_in_its_declared_type() -> None:
    types = {"float": np.float32, "int32_t": np.int32, "uint64_t": np.uint64}
    members = dict(load().ffi.typeof("quire_sampling").fields)
    found = {name: types[members.pop(name).type.item.cname] for name in COLUMNS}
    assert found == {name: column.dtype for name, column in COLUMNS.items()}
    assert members.keys() == {"bias_starts", "bias_ids", "bias_values"}


def test_a_column_that_the_native_library_does_not_have_is_refused(
    model: CompiledModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(model._sampling_types, "min_p")  # type: ignore[attr-defined]
    batch = batch_of([(make_seqs([ROWS])[0], ROWS)], columns(min_p=floats(0.1)))
    with pytest.raises(BackendError, match="no sampling column min_p"):
        model.step(batch)
