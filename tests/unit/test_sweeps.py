"""The sample of a sweep has every value, few cases, and depends on the seed alone."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest
import sweeps


def cases(*sizes: int) -> list[sweeps.Values]:
    """The product of arguments with so many values."""
    values = product(*(range(size) for size in sizes))
    return [frozenset((f"argument {n}", i) for n, i in enumerate(case)) for case in values]


@pytest.mark.parametrize("sizes", [(6, 13, 10), (3, 4), (40,), (2, 2, 2, 2)])
def test_every_value_occurs_in_few_cases(sizes: tuple[int, ...]) -> None:
    every = cases(*sizes)
    for seed in range(20):
        chosen = [every[place] for place in sweeps.sample(every, Random(seed))]
        assert set().union(*chosen) == set().union(*every)
        assert len(chosen) <= 2 * max(sizes)


def test_a_seed_repeats_a_sample_and_others_differ() -> None:
    every = cases(5, 5, 5)
    samples = [frozenset(sweeps.sample(every, Random(seed))) for seed in (1, 1, 2, 3, 4)]
    assert samples[0] == samples[1]
    assert len(set(samples)) > 2


def test_small_sweeps_run_whole() -> None:
    assert len(sweeps.sample(cases(2, 2), Random(0))) == 4


@pytest.mark.parametrize("most", [1, 3, 40])
def test_a_mark_bounds_the_cases_and_all_of_them_have_their_turn(most: int) -> None:
    samples = [sweeps.sample(cases(7), Random(seed), most) for seed in range(50)]
    assert {len(chosen) for chosen in samples} == {min(most, 7)}
    assert set().union(*samples) == set(range(7))


def test_cases_with_the_same_setup_are_taken_together() -> None:
    """One of each rank, the lowest first, and then a second one of the lowest."""
    ranks = [place % 4 for place in range(20)]
    for seed in range(20):
        chosen = sweeps.sample(cases(20), Random(seed), 6, ranks)
        assert sorted(ranks[place] for place in chosen) == [0, 0, 1, 1, 2, 3]


def test_what_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(sweeps.SAMPLE, raising=False)
    monkeypatch.setenv(sweeps.SEED, "17")
    assert sweeps.seed() == 17
    monkeypatch.delenv(sweeps.SEED)
    assert sweeps.seed() == 0
    monkeypatch.setenv(sweeps.SEED, "random")
    assert sweeps.seed() == sweeps.seed()
    monkeypatch.setenv(sweeps.SEED, "many")
    with pytest.raises(ValueError, match="QUIRE_TEST_SEED must be random or a whole number"):
        sweeps.seed()
    monkeypatch.setenv(sweeps.SAMPLE, "all")
    assert sweeps.seed() is None
    monkeypatch.setenv(sweeps.SAMPLE, "half")
    with pytest.raises(ValueError, match="QUIRE_TEST_SAMPLE must be some or all, got 'half'"):
        sweeps.seed()
