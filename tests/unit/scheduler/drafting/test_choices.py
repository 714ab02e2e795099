"""How many draft tokens a step has: as many as raise its tokens per second."""

from __future__ import annotations

from typing import Any, cast

import pytest

from quire.scheduler.drafting.drafting import (
    RequestAcceptance,
    RowCosts,
    _best_counts,
    _Candidate,
    rates_of_engine,
)


def candidates(*rates: float) -> list[_Candidate]:
    return [_Candidate(cast(Any, None), [0] * 8, 0, rate) for rate in rates]


def costs(**seconds: float) -> RowCosts:
    found = RowCosts()
    for rows, value in seconds.items():
        found.observe(int(rows[1:]), value)
    return found


@pytest.mark.parametrize(
    ("rates", "rows", "known", "wanted"),
    [
        ((0.9,), 1, {"r1": 1.0, "r2": 1.0, "r9": 1.0}, [8]),  # rows are free
        ((0.9,), 1, {"r1": 1.0, "r2": 2.0, "r9": 9.0}, [0]),  # each row costs a whole step
        ((0.9, 0.1), 2, {"r2": 1.0, "r3": 1.05, "r4": 2.0, "r18": 9.0}, [1, 0]),
        ((0.5,), 1, {"r1": 1.0, "r2": 1.2, "r4": 1.2, "r5": 3.0, "r9": 9.0}, [3]),
        ((0.0,), 1, {"r1": 1.0, "r2": 1.01}, [0]),
    ],
)
def test_the_best_counts(
    rates: tuple[float, ...], rows: int, known: dict[str, float], wanted: list[int]
) -> None:
    assert _best_counts(candidates(*rates), rows, 100, costs(**known)) == wanted


def test_no_more_than_allowed() -> None:
    free = costs(r2=1.0, r3=1.0, r18=1.0)
    assert _best_counts(candidates(0.9, 0.8), 2, 1, free) == [1, 0]
    assert _best_counts(candidates(0.9, 0.8), 2, 0, free) == [0, 0]


def test_one_slow_step_is_forgotten() -> None:
    found = costs(r1=1.0)
    found.observe(1, 50.0)
    for _ in range(30):
        found.observe(1, 1.0)
    assert found.seconds(1) == pytest.approx(1.0, rel=0.01)


def test_a_size_that_was_never_tried_lies_between_its_neighbours() -> None:
    found = costs(r1=1.0, r9=1.2)
    assert 1.0 < found.seconds(5) < 1.2
    assert found.seconds(20) > 1.2
    assert RowCosts().seconds(7) == 1.0


def test_rates_are_learned_and_fade() -> None:
    engine = rates_of_engine()
    good, bad = RequestAcceptance(engine), RequestAcceptance(engine)
    for _ in range(20):
        good.observe(1, 4, 4)
        bad.observe(1, 4, 0)
    assert good.rate(1) > 0.8
    assert bad.rate(1) < 0.2
    low = bad.rate(1)
    for _ in range(200):
        bad.fade()
    assert bad.rate(1) > low
    assert good.rate(0) == pytest.approx(0.5)
