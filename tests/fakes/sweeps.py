"""A run takes a sample of each large sweep, in which every value of every parameter occurs.

A sweep is a test function with many cases: the product of families, formats, tiers, shapes. A value
is the `isa`, `case` or any other argument of a case. The sample has each value at least once, in
combinations that a seed chooses: every run covers every family, every format and every tier. A
sweep of one argument would run whole; where its cases are alike and slow, `@pytest.mark.sweep(n)`
runs n of them. The functions of a module prefer the same values of what is set up once for many of
them.

The sample is the same in every run, so that a change and its check run the same cases.
`QUIRE_TEST_SEED=random` takes another one, `QUIRE_TEST_SEED=1234` repeats one, and
`QUIRE_TEST_SAMPLE=all` runs every case.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from random import Random

SEED = "QUIRE_TEST_SEED"
SAMPLE = "QUIRE_TEST_SAMPLE"
SMALL = 4
"""Sweeps of at most so many cases run whole."""

Values = frozenset[tuple[str, int]]
"""Of a case: the name of each argument, and a number for its value, equal for equal values."""


def seed() -> int | None:
    """The seed of this run, 0 by default; None: every case runs. Processes that are started later
    have it too."""
    chosen = os.environ.get(SAMPLE, "some")
    if chosen not in ("some", "all"):
        raise ValueError(f"{SAMPLE} must be some or all, got {chosen!r}")
    if chosen == "all":
        return None
    given = os.environ.get(SEED, "0")
    if given == "random":
        given = os.environ[SEED] = str(Random().randrange(10**6))
    if not given.isdecimal():
        raise ValueError(f"{SEED} must be random or a whole number such as 1234, got {given!r}")
    return int(given)


def examples(count: int) -> int:
    """How many random examples a test tries: a fourth of `count` unless every case runs."""
    return count if seed() is None else count // 4


def sample(
    cases: Sequence[Values],
    random: Random,
    most: int | None = None,
    ranks: Sequence[float] | None = None,
) -> set[int]:
    """The places of cases that have all values between them: few, and chosen by `random`.

    `most`: at most so many cases, whatever values they have. `ranks`: equal for cases that share
    their setup; those of low rank are taken first, one of each rank in turn."""
    order = random.sample(range(len(cases)), len(cases))
    if most is not None:
        seen: Counter[float] = Counter()
        turns: dict[int, tuple[int, float]] = {}
        for place in order:
            rank = ranks[place] if ranks else 0.0
            turns[place] = seen[rank], rank
            seen[rank] += 1
        return set(sorted(order, key=turns.__getitem__)[:most])
    if len(cases) <= SMALL:
        return set(order)
    missing = set().union(*cases)
    chosen: set[int] = set()
    for new in range(max(map(len, cases)), 0, -1):  # first the cases with the most new values
        for place in order:
            if len(cases[place] & missing) >= new:
                chosen.add(place)
                missing -= cases[place]
    return chosen
