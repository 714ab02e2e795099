"""Which models are unloaded for another one."""

from __future__ import annotations

import random

import pytest

from quire.server.fleet.fleet import Holding, to_unload

A, B, C = Holding("a", 10, 1.0), Holding("b", 50, 2.0), Holding("c", 20, 3.0)


@pytest.mark.parametrize(
    ("missing", "found"),
    [
        (-5, []), (0, []), (1, ["a"]), (10, ["a"]),
        (11, ["b"]),  # a alone is not enough, and with b it is not needed
        (60, ["a", "b"]), (70, ["b", "c"]), (80, ["a", "b", "c"]), (81, None),
    ],
)  # fmt: skip
def test_the_least_recently_used_go_first(missing: int, found: list[str] | None) -> None:
    assert to_unload(missing, [C, A, B]) == found


def test_what_goes_is_enough_and_none_of_it_is_too_much() -> None:
    rng = random.Random(7)
    for _ in range(300):
        held = [Holding(str(i), rng.randint(1, 20), rng.random()) for i in range(rng.randint(0, 6))]
        missing, sizes = rng.randint(1, 80), {one.name: one.num_bytes for one in held}
        found = to_unload(missing, held)
        if found is None:
            assert sum(sizes.values()) < missing
            continue
        freed = sum(sizes[name] for name in found)
        assert freed >= missing
        assert all(freed - sizes[name] < missing for name in found)
