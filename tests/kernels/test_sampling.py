"""Native sampling against quire.sampling.reference, on logits of many shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from harness import Weights, batch_of, compile_on, logits_of, make_seqs, program_of
from numpy.typing import NDArray

from quire.backends.base import CompiledModel, SamplingColumns
from quire.backends.cpu import CpuBackend, load
from quire.errors import BackendError
from quire.program import Logits, Program, Value
from quire.sampling.columns import COLUMNS, LOGPROBS_KINDS, TOKEN_LISTS
from quire.sampling.masks import MASK_BITS, TokenMasks
from quire.sampling.reference import adjust, logprobs, no_choice, sample
from quire.sampling.token_lists import TokenLists

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
    return {"bias": lists([3, 17, 17, 4000], value)}


def lists(ids: list[int], value: float | None = None) -> TokenLists:
    """The same ids for every row, but none for the fourth."""
    tokens = np.array(ids, np.int32)
    values = None if value is None else np.full(len(ids), value, np.float32)
    return TokenLists.join([None if row == 3 else (tokens, values) for row in range(ROWS)])


def seen() -> TokenLists:
    """Every second token of each row but the fourth, from 0 to 4 times."""
    ids = np.random.default_rng(2).permutation(VOCAB)[: VOCAB // 2].astype(np.int32)
    values = (ids % 5).astype(np.float32)
    return TokenLists.join([None if row == 3 else (ids, values) for row in range(ROWS)])


def masks(keep: Callable[[NDArray[np.int_], int], NDArray[np.bool_]]) -> TokenMasks:
    """`keep` says of all ids which of them a row may choose; the fourth row may choose any."""
    width = -(-VOCAB // MASK_BITS) * MASK_BITS
    lines = []
    for row in range(ROWS):
        bits = np.ones(width, np.bool_)  # also behind the vocabulary, where they mean nothing
        bits[:VOCAB] = keep(np.arange(VOCAB), row)
        lines.append(None if row == 3 else np.packbits(bits, bitorder="little").view(np.uint32))
    return TokenMasks.join(lines)


SCATTERED = masks(lambda ids, row: (ids * 7 + row) % 11 < 4)
FEW = masks(lambda ids, row: (ids % 1999 == row) | (ids == VOCAB - 1))
BLOCKS = masks(lambda ids, row: ids // 1024 % 3 == row % 3)
HALVES = masks(lambda ids, row: (ids < 2500) == (row % 2 == 0))
ONE = masks(lambda ids, row: ids == 100 * row)


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
    "allowed": {"allowed": lists([4999, 2, 1025])},
    "one allowed": {"allowed": lists([17]), "temperature": floats(0.0)},
    "allowed, and forbidden": {"allowed": lists([4000, 3, 9]), **biased(-np.inf)},
    "allowed of the best": {
        "allowed": lists([*range(0, VOCAB, 3)]),
        "top_k": ints(5, 0, 2000),
        "top_p": floats(0.9),
    },
    "repetition": {"seen": seen(), "repetition_penalty": floats(1.4), "temperature": floats(0.0)},
    "frequency": {"seen": seen(), "frequency_penalty": floats(0.6)},
    "presence": {"seen": seen(), "presence_penalty": floats(-0.9)},
    "everything at once": {
        "seen": seen(),
        "repetition_penalty": np.resize(np.array([0.5, 2], np.float32), ROWS),
        "frequency_penalty": floats(0.3),
        "presence_penalty": floats(-0.7),
        "allowed": lists([*range(4000)]),
        **biased(2.0),
        "top_k": ints(0, 90),
        "top_p": floats(0.9),
    },
    "chosen already": {"chosen": ints(-1, 7, 4999), **biased(-np.inf)},
    "masked": {"mask": SCATTERED},
    "masked but few": {"mask": FEW, "top_p": floats(0.7)},
    "masked by blocks": {"mask": BLOCKS, "temperature": floats(0.0)},
    "masked by halves": {"mask": HALVES, "top_k": ints(5, 0, 2600), "min_p": floats(0.01)},
    "masked but one": {"mask": ONE},
    "later tokens": {"mass_from": ints(1, 2500, 4999, -1)},
    "later tokens of a mask": {"mask": SCATTERED, "mass_from": ints(3000, 4990, 0)},
    "masked, and the rest": {
        "mask": SCATTERED,
        "seen": seen(),
        "frequency_penalty": floats(0.4),
        "allowed": lists([*range(1000, 5000)]),
        **biased(-np.inf),
        "top_p": floats(0.9),
    },
}


ADJUSTED_ALONE = ("favoured", "one allowed", "repetition", "masked by blocks")
"""The largest of the changed logits is chosen."""


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


@pytest.mark.parametrize("mode", LOGPROBS_KINDS)
@pytest.mark.parametrize("case", CASES)
def test_reports_what_the_reference_reports(model: CompiledModel, case: str, mode: Any) -> None:
    kind = ints(LOGPROBS_KINDS[mode])
    wanted = columns(**CASES[case], num_logprobs=ints(2, 6, 0, -1), logprobs_kind=kind)
    wanted.reported = TokenLists.join(
        [(np.array([4, 17], np.int32), None) if row % 4 == 0 else None for row in range(ROWS)]
    )
    output = model.step(batch_of([(make_seqs([ROWS])[0], ROWS)], wanted))
    logits = logits_of(output)
    found, reference = output.logprobs, logprobs(logits, output.sampled, wanted)
    assert found is not None
    assert reference is not None
    assert np.array_equal(found.token_ids[::4, :2], np.tile([4, 17], (ROWS // 4, 1)))
    # Where rounding puts a token on the other side of a boundary, it is reported as dropped.
    is_same = np.isfinite(found.logprobs) == np.isfinite(reference.logprobs)
    assert (~is_same).sum() <= 1
    agreeing = is_same.all(axis=1)
    assert np.array_equal(found.token_ids[agreeing], reference.token_ids[agreeing])
    assert np.array_equal(found.ranks[agreeing], reference.ranks[agreeing])
    assert np.array_equal(found.sampled_ranks[agreeing], reference.sampled_ranks[agreeing])
    close = {"rtol": 1e-5, "atol": 1e-5}
    np.testing.assert_allclose(found.logprobs[agreeing], reference.logprobs[agreeing], **close)
    np.testing.assert_allclose(found.sampled[agreeing], reference.sampled[agreeing], **close)
    if mode == "processed_logits" and case in ADJUSTED_ALONE:
        rows = np.flatnonzero(wanted.num_logprobs >= 0)  # type: ignore[operator]
        chosen = [adjust(logits[row], wanted, row)[output.sampled[row]] for row in rows.tolist()]
        assert np.array_equal(found.sampled[rows], np.array(chosen, np.float32)), "to the bit"


@pytest.mark.parametrize("mode", ["raw_logits", "processed_logprobs"])
@pytest.mark.parametrize("case", CASES)
def test_logits_that_come_back_give_the_bits_of_a_step(
    model: CompiledModel, case: str, mode: Any
) -> None:
    """As they are, and after what the reference did to them."""
    kind = ints(LOGPROBS_KINDS[mode])
    wanted = columns(**CASES[case], num_logprobs=ints(2, 6, 0, -1), logprobs_kind=kind)
    step = model.step(batch_of([(make_seqs([ROWS])[0], ROWS)], wanted))
    logits = logits_of(step)
    again = model.sample(logits, wanted)
    adjusted = np.stack([adjust(logits[row], wanted, row) for row in range(ROWS)])
    rest = replace(wanted, allowed=None, bias=None, seen=None)
    after = model.sample(adjusted, rest)
    assert np.array_equal(step.sampled, again.sampled)
    assert np.array_equal(step.sampled, after.sampled)
    assert step.logprobs is not None
    for output in (
        (again, after) if mode == "processed_logprobs" and case not in CHOSEN else (again,)
    ):
        assert output.logprobs is not None
        for name in ("token_ids", "logprobs", "ranks", "sampled", "sampled_ranks"):
            found, expected = getattr(output.logprobs, name), getattr(step.logprobs, name)
            assert np.array_equal(found, expected), name


CHOSEN = ("chosen already",)
"""Reported of the logits that come in."""


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_only_allowed_tokens_are_chosen(model: CompiledModel, temperature: float) -> None:
    by_list = columns(allowed=lists([5, 6, 1234]), temperature=floats(temperature))
    banned = sorted({*range(VOCAB)} - {5, 6, 1234})
    by_bias = columns(bias=lists(banned, -np.inf), temperature=floats(temperature))
    chosen = [
        model.step(batch_of([(make_seqs([ROWS])[0], ROWS)], one)).sampled
        for one in (by_list, by_bias)
    ]
    assert {*chosen[0].tolist()} - {int(chosen[0][3])} <= {5, 6, 1234}
    assert np.array_equal(*chosen)


def test_only_tokens_that_the_mask_allows_are_chosen(model: CompiledModel) -> None:
    for mask in (SCATTERED, FEW, BLOCKS, HALVES, ONE):
        wanted = columns(mask=mask, num_logprobs=ints(3))
        output = model.step(batch_of([(make_seqs([ROWS])[0], ROWS)], wanted))
        assert output.logprobs is not None
        for row, token in enumerate(output.sampled.tolist()):
            allowed = mask.allows(row, VOCAB)
            assert (allowed is None) == (row == 3)
            if allowed is None:
                continue
            assert allowed[token]
            probability = np.exp(output.logprobs.logprobs[row].astype(np.float64))
            best = output.logprobs.token_ids[row]
            assert not probability[~allowed[best]].any(), "also of raw logits"
            if mask is ONE:
                assert (token, probability[0]) == (100 * row, 1.0)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_row_without_a_token_to_choose_is_named(model: CompiledModel, temperature: float) -> None:
    """The mask allows a token, and all that it allows are forbidden; in other rows something is
    left, or there is no mask."""
    wanted = columns(
        mask=masks(lambda ids, row: ids == (17 if row % 2 == 0 else 18)),
        bias=lists([17], -np.inf),
        temperature=floats(temperature),
        num_logprobs=ints(1),
    )
    output = model.step(batch_of([(make_seqs([ROWS])[0], ROWS)], wanted))
    expected = np.arange(ROWS) % 2 == 0
    assert output.no_choice is not None
    assert np.array_equal(output.no_choice, expected)
    assert np.array_equal(output.no_choice, no_choice(logits_of(output), wanted))
    chosen = sample(logits_of(output), wanted)
    assert np.array_equal(output.sampled[expected], chosen[expected])
    odd = np.arange(ROWS) % 2 == 1
    odd[3] = False
    assert (output.sampled[odd] == 18).all()
    assert output.logprobs is not None
    assert (output.logprobs.token_ids[expected] == -1).all()
    reference = logprobs(logits_of(output), output.sampled, wanted)
    assert reference is not None
    assert np.array_equal(output.logprobs.token_ids, reference.token_ids)


def test_a_row_without_a_mask_is_what_it_is_in_a_batch_without_any(model: CompiledModel) -> None:
    wanted = columns(num_logprobs=ints(2))
    plain = model.step(batch_of([(make_seqs([ROWS])[0], ROWS)], wanted))
    wanted.mask = FEW
    masked = model.step(batch_of([(make_seqs([ROWS])[0], ROWS)], wanted))
    assert masked.sampled[3] == plain.sampled[3]
    assert masked.logprobs is not None
    assert plain.logprobs is not None
    assert np.array_equal(masked.logprobs.token_ids[3], plain.logprobs.token_ids[3])
    assert np.array_equal(masked.logprobs.logprobs[3], plain.logprobs.logprobs[3])


@pytest.mark.parametrize("case", ["favoured", "allowed", "everything at once", "chosen already"])
def test_a_row_without_changes_is_what_it_is_in_a_batch_without_any(
    model: CompiledModel, case: str
) -> None:
    changes = {**CASES[case], "temperature": floats(0.8), "num_logprobs": ints(2)}
    if case == "everything at once":
        del changes["top_k"], changes["top_p"]
    if case == "chosen already":
        changes = {"chosen": ints(7), "num_logprobs": ints(2)}
        changes["chosen"][3] = -1  # type: ignore[index]
    seqs = make_seqs([ROWS]), make_seqs([ROWS])
    changed = model.step(batch_of([(seqs[0][0], ROWS)], columns(**changes)))
    plain = model.step(batch_of([(seqs[1][0], ROWS)], columns(num_logprobs=ints(2))))
    assert changed.sampled[3] == plain.sampled[3]
    assert changed.logprobs is not None
    assert plain.logprobs is not None
    assert np.array_equal(changed.logprobs.token_ids, plain.logprobs.token_ids)
    assert np.array_equal(changed.logprobs.logprobs, plain.logprobs.logprobs), "of the raw logits"


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
    assert members.pop("mask").type.cname == "struct quire_token_masks"
    assert members.keys() == TOKEN_LISTS.keys()
    assert {member.type.cname for member in members.values()} == {"struct quire_token_lists"}


def test_a_column_that_the_native_library_does_not_have_is_refused(
    model: CompiledModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(model._sampling_types, "min_p")  # type: ignore[attr-defined]
    batch = batch_of([(make_seqs([ROWS])[0], ROWS)], columns(min_p=floats(0.1)))
    with pytest.raises(BackendError, match="no sampling column min_p"):
        model.step(batch)
    monkeypatch.setattr(model, "_list_names", set())
    batch.sampling = columns(allowed=lists([1]))
    with pytest.raises(BackendError, match="no sampling column allowed"):
        model.step(batch)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"allowed": lists([5000])}, "allowed id 5000 is not from 0 to 4999"),
        ({"bias": lists([-1], 1.0)}, "bias id -1 is not from 0 to 4999"),
        ({"bias": lists([1] * 10001, 1.0)}, "bias has a row of a wrong length"),
        ({"seen": lists([1] * 5001, 1.0)}, "seen has a row of a wrong length"),
        ({"repetition_penalty": floats(0.0)}, "repetition_penalty is not positive"),
        ({"chosen": ints(5000)}, "no such token is chosen"),
        ({"mask": replace(ONE, index=ints(39))}, "mask has an index without words"),
        ({"mask": replace(ONE, index=ints(-2))}, "mask has an index without words"),
        ({"mask": replace(ONE, index=ONE.index[1:])}, "mask has an index of int32 .39. for 40"),
        ({"mask": replace(ONE, words=ONE.words[:, 1:])}, "must be uint32 with 157 words"),
    ],
)
def test_tokens_that_are_none_are_refused(
    model: CompiledModel, changes: dict[str, object], message: str
) -> None:
    batch = batch_of([(make_seqs([ROWS])[0], ROWS)], columns(**changes))
    with pytest.raises(BackendError, match=message):
        model.step(batch)


def test_the_native_library_numbers_what_is_reported_alike() -> None:
    library = load()
    for mode, kind in LOGPROBS_KINDS.items():
        assert library.code(f"QUIRE_{mode.upper()}") == kind
