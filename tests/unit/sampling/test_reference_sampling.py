"""The rules of choosing a token, one by one, and the distribution they give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sampling_columns import SamplingRow, build_columns

from quire.sampling.reference import logprobs, not_finite, sample, splitmix64, uniform
from quire.sampling.token_lists import TokenLists

LOGITS = np.log(np.array([0.1, 0.4, 0.05, 0.25, 0.2], np.float32))
"""Probabilities that one can add in the head."""


def ids(*values: int) -> NDArray[np.int32]:
    return np.array(values, np.int32)


def floats(*values: float) -> NDArray[np.float32]:
    return np.array(values, np.float32)


def draws(count: int, logits: Any = LOGITS, **row: Any) -> list[int]:
    """`count` choices at successive positions, each of its own random number."""
    rows = [SamplingRow(**{"temperature": 1.0, "position": p, **row}) for p in range(count)]
    many = np.repeat(np.asarray(logits, np.float32)[None], count, axis=0)
    return [int(token) for token in sample(many, build_columns(rows))]


def test_splitmix64_known_values() -> None:
    # The generator's published outputs from state 0: each step adds the constant, then mixes.
    assert splitmix64(0) == 0xE220A8397B1DCDAF
    assert splitmix64(0x9E3779B97F4A7C15) == 0x6E789E6AA1B965F4
    assert splitmix64(2**64 - 1) < 2**64


def test_uniform_is_a_function_of_seed_and_counter_and_even() -> None:
    assert uniform(3, 4) == uniform(3, 4) != uniform(4, 3)
    values = np.array([uniform(12, counter) for counter in range(20000)])
    assert values.min() >= 0
    assert values.max() < 1
    counts = np.histogram(values, bins=20, range=(0, 1))[0]
    assert abs(counts - 1000).max() < 130
    neighbours = np.corrcoef(values[:-1], values[1:])[0, 1]
    assert abs(neighbours) < 0.03


def test_greedy_takes_the_largest_and_the_lowest_id_among_equals() -> None:
    assert draws(1, temperature=0.0) == [1]
    assert draws(1, [1.0, 3.0, 3.0, 2.0], temperature=0.0) == [1]


def test_the_distribution_is_the_softmax() -> None:
    counts = np.bincount(draws(20000), minlength=5) / 20000
    np.testing.assert_allclose(counts, [0.1, 0.4, 0.05, 0.25, 0.2], atol=0.012)


def test_temperature_sharpens_and_flattens() -> None:
    cold = np.bincount(draws(5000, temperature=0.5), minlength=5) / 5000
    squares = np.array([0.01, 0.16, 0.0025, 0.0625, 0.04])
    np.testing.assert_allclose(cold, squares / squares.sum(), atol=0.025)


@pytest.mark.parametrize(
    ("row", "kept"),
    [
        ({"top_k": 2}, {1, 3}),
        ({"top_k": 1}, {1}),
        ({"top_k": 5}, {0, 1, 2, 3, 4}),
        ({"top_k": 99}, {0, 1, 2, 3, 4}),
        ({"top_k": -1}, {0, 1, 2, 3, 4}),
        ({"top_p": 0.6}, {1, 3}),
        ({"top_p": 0.7}, {1, 3, 4}),
        ({"top_p": 0.0001}, {1}),
        ({"min_p": 0.49}, {1, 3, 4}),
        ({"min_p": 1.0}, {1}),
        # top_p over what top_k left: 0.4 / 0.65 = 0.615 suffices.
        ({"top_k": 2, "top_p": 0.6}, {1}),
        # top_p over what min_p left: 0.4 + 0.25 of 0.85.
        ({"min_p": 0.49, "top_p": 0.75}, {1, 3}),
        ({"banned_token_ids": [1, 3]}, {0, 2, 4}),
        ({"banned_token_ids": [1], "top_k": 1}, {3}),
    ],
)
def test_what_is_kept(row: dict[str, Any], kept: set[int]) -> None:
    assert set(draws(600, **row)) == kept


def test_among_equals_the_lower_id_is_kept() -> None:
    equal = [0.0] * 6
    assert set(draws(300, equal, top_k=3)) == {0, 1, 2}
    assert set(draws(300, equal, top_p=0.49)) == {0, 1, 2}


def test_a_neutral_column_changes_nothing() -> None:
    rows = [SamplingRow(temperature=1.0, seed=s, position=3) for s in range(50)]
    many = np.repeat(LOGITS[None], 50, axis=0)
    bare = build_columns(rows)
    full = build_columns(rows)
    full.top_k, full.top_p = np.zeros(50, np.int32), np.ones(50, np.float32)
    full.min_p = np.zeros(50, np.float32)
    assert (sample(many, bare) == sample(many, full)).all()


def test_bias_adds_and_the_same_id_may_stand_twice() -> None:
    columns = build_columns([SamplingRow(), SamplingRow()])
    columns.bias = TokenLists.join([None, (ids(2, 2), floats(1.5, 1.5))])
    assert sample(np.repeat(LOGITS[None], 2, axis=0), columns).tolist() == [1, 2]


def test_rows_that_are_no_distribution_choose_and_report_nothing() -> None:
    nan, inf = np.nan, np.inf
    rows = [[nan, 0, 2], [0, inf, 1], [-inf, -inf, -inf], [nan, nan, nan], [-inf, 1, 0], [0, 2, 1]]
    logits = np.array(rows, np.float32)
    assert not_finite(logits).tolist() == [True, True, True, True, False, False]
    columns = build_columns([SamplingRow(num_logprobs=2) for _ in rows])
    chosen = sample(logits, columns)
    assert chosen.tolist() == [0, 0, 0, 0, 1, 1]
    found = logprobs(logits, chosen, columns)
    assert found is not None
    assert found.token_ids.tolist() == [[-1, -1]] * 4 + [[1, 2], [1, 2]]
    assert not np.isnan(found.logprobs).any()
    assert not np.isnan(found.sampled).any()


def test_a_ban_holds_whatever_is_added_to_it() -> None:
    columns = build_columns([SamplingRow()])
    columns.bias = TokenLists.join([(ids(1, 1), floats(-np.inf, 100))])
    assert sample(np.array([[0.0, 5.0, 1.0]], np.float32), columns).tolist() == [2]


def test_only_allowed_tokens_may_be_chosen_where_a_row_has_any() -> None:
    columns = build_columns([SamplingRow(), SamplingRow(), SamplingRow()])
    columns.allowed = TokenLists.join([(ids(2, 0), None), None, (ids(2, 0, 2), None)])
    columns.bias = TokenLists.join([None, None, (ids(1, 2), floats(9, 1))])
    assert sample(np.repeat(LOGITS[None], 3, axis=0), columns).tolist() == [0, 1, 2]


def test_a_token_that_is_chosen_already_is_the_rows_and_is_reported() -> None:
    columns = build_columns([SamplingRow(num_logprobs=0), SamplingRow(num_logprobs=0)])
    columns.chosen = ids(2, -1)
    columns.bias = TokenLists.join([(ids(2), floats(-np.inf)), None])
    many = np.repeat(LOGITS[None], 2, axis=0)
    chosen = sample(many, columns)
    assert chosen.tolist() == [2, 1]
    found = logprobs(many, chosen, columns)
    assert found is not None
    np.testing.assert_allclose(np.exp(found.sampled), [0.05, 0.4], rtol=1e-5)
    assert found.sampled_ranks.tolist() == [5, 1]


@settings(max_examples=60, deadline=None)
@given(
    logits=st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=40),
    temperature=st.floats(0.05, 5),
    top_k=st.integers(0, 45),
    top_p=st.floats(0.01, 1),
    min_p=st.floats(0, 1),
    seed=st.integers(0, 2**64 - 1),
)
def test_the_choice_lies_in_the_kept_set_by_definition(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float, seed: int
) -> None:
    row = SamplingRow(temperature, top_k, top_p, min_p, seed, position=17)
    columns = build_columns([row])
    [token] = sample(np.array([logits], np.float32), columns)
    z = np.array(logits, np.float32).astype(np.float64) / float(np.float32(temperature))
    p = np.exp(z - z.max())
    order = sorted(range(len(p)), key=lambda i: (-p[i], i))
    order = [i for i in order if p[i] >= float(np.float32(min_p)) * p.max()]
    order = order[: top_k or None]
    mass, kept = 0.0, []
    for i in order:
        kept.append(i)
        mass += p[i]
        if mass >= float(np.float32(top_p)) * sum(p[j] for j in order) * (1 + 1e-12):
            break
    assert token in kept


def test_logprobs_are_of_the_raw_logits_best_first() -> None:
    rows = [
        SamplingRow(num_logprobs=2, banned_token_ids=[1]),
        SamplingRow(),
        SamplingRow(num_logprobs=0),
    ]
    columns = build_columns(rows)
    many = np.repeat(LOGITS[None], 3, axis=0) + 5
    chosen = sample(many, columns)
    assert chosen.tolist() == [3, 1, 1]
    found = logprobs(many, chosen, columns)
    assert found is not None
    assert found.token_ids.tolist() == [[1, 3], [-1, -1], [-1, -1]]
    np.testing.assert_allclose(np.exp(found.logprobs[0]), [0.4, 0.25], rtol=1e-5)
    np.testing.assert_allclose(np.exp(found.sampled), [0.25, 1.0, 0.4], rtol=1e-5)
    assert found.sampled_ranks.tolist() == [2, 0, 1]


def test_logprobs_of_equals_and_more_than_there_are() -> None:
    logits = np.zeros((1, 3), np.float32)
    columns = build_columns([SamplingRow(num_logprobs=5)])
    found = logprobs(logits, np.array([2], np.int32), columns)
    assert found is not None
    assert found.token_ids.tolist() == [[0, 1, 2, -1, -1]]
    assert found.sampled_ranks.tolist() == [1]


def test_no_logprobs_unless_asked() -> None:
    columns = build_columns([SamplingRow()])
    assert logprobs(LOGITS[None], np.array([1], np.int32), columns) is None
