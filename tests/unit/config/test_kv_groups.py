"""How many blocks a group holds, against a count of what every step reads and writes."""

from __future__ import annotations

from itertools import product

import pytest
from kv_layouts import group_of

from quire.config.kv_groups import KVGroup
from quire.config.kv_layout import KVLayout, KVPlace

FULL = group_of((0,), 1, 1)


def window(size: int) -> KVGroup:
    return group_of((0,), 1, 1, size)


def entries_of_a_step(group: KVGroup, computed: int, count: int, size: int) -> set[int]:
    """The entries that hold what the tokens computed .. computed + count - 1 see."""
    seen = group.window or computed + count
    positions = range(max(0, computed - seen + 1), computed + count)
    return {position // size for position in positions}


@pytest.mark.parametrize("size", [1, 3, 4, 16])
@pytest.mark.parametrize("group", [FULL, window(1), window(2), window(5), window(16), window(17)])
def test_counts_are_those_of_the_worst_step(group: KVGroup, size: int) -> None:
    length = 70
    for chunk in (1, 2, 7, 16, 33, 100):
        steps = [
            entries_of_a_step(group, computed, count, size)
            for computed, count in product(range(length), range(1, chunk + 1))
            if computed + count <= length
        ]
        assert group.most_blocks(length, chunk, size) == max(map(len, steps))
    for computed in range(length):
        [first, *_] = sorted(entries_of_a_step(group, computed, 1, size))
        assert group.first_entry(computed, size) == first


def test_kinds() -> None:
    layout = KVLayout((window(5), window(5), FULL), 1)
    assert layout.describe() == "2 x window 5, 1 x full"
    assert not layout.keeps_all
    assert KVLayout((FULL,), 1).keeps_all


def test_places_are_by_order_in_a_group() -> None:
    layout = KVLayout((group_of((0, 2), 1, 1, 5), group_of((1,), 1, 1)), 2)
    assert layout.places() == {0: KVPlace(0, 0), 2: KVPlace(0, 1), 1: KVPlace(1, 0)}


@pytest.mark.parametrize("groups", [(FULL,), (window(9),), (FULL, window(9), window(40))])
def test_the_longest_request_is_the_last_that_fits(groups: tuple[KVGroup, ...]) -> None:
    layout = KVLayout(groups, 1)
    for num_blocks in range(40):
        longest = layout.longest(num_blocks, 500, 8, 4)
        assert layout.most_blocks(longest, 8, 4) <= num_blocks
        assert longest == 500 or layout.most_blocks(longest + 1, 8, 4) > num_blocks
