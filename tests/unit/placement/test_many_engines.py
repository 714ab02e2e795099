"""Fleets of engines: few are compared, and those that are slow or send nothing are avoided."""

from __future__ import annotations

import itertools
import random

import pytest

from quire.kvcache.sequence import extra_of, hash_block, hash_blocks
from quire.placement import Placement
from quire.placement import policy as policy_module
from quire.placement.policy import EngineLimits
from quire.placement.prefix_index import BlockKeys, Holders, PrefixIndex, by_overlap
from quire.protocol.input_rows import InputRows

LIMITS = EngineLimits(block_size=16, num_blocks=400, max_num_seqs=64, max_num_batched_tokens=256)
SHARED = list(range(320))


seeds = itertools.count()


class Clock:
    """Time that a test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


class Served:
    """Engines that send the first token of a request after a time, and end it then."""

    def __init__(self, num_engines: int) -> None:
        self.clock = Clock()
        self.placed = Placement(num_engines, LIMITS, clock=self.clock)
        self._count = 0

    def ask(self, prompt: list[int], first_token_s: list[float]) -> int:
        """The engine that was chosen. `first_token_s`: of each engine."""
        self._count += 1
        name = str(self._count)
        engine = self.placed.place(name, prompt)
        self.clock.now += first_token_s[engine]
        self.placed.advance(name, [1])
        self.placed.end(name)
        return engine


def prompts(count: int) -> list[list[int]]:
    """New ones each time."""
    rng = random.Random(next(seeds))
    return [[rng.randrange(5000) for _ in range(100)] for _ in range(count)]


def test_a_slow_engine_gets_less() -> None:
    served = Served(4)
    for prompt in prompts(40):  # the engines take turns until something is known
        served.ask(prompt, [0.1] * 4)
    found = [served.ask(prompt, [0.1, 0.1, 0.1, 0.9]) for prompt in prompts(60)]
    assert found.count(3) <= 3
    served.clock.now += 300  # what was measured counts no longer
    found = [served.ask(prompt, [0.1] * 4) for prompt in prompts(12)]
    assert found.count(3) >= 2


def test_differences_that_may_be_chance_do_not_count() -> None:
    served = Served(2)
    found = [served.ask(prompt, [0.1, 0.13]) for prompt in prompts(60)]
    assert 25 <= found.count(1) <= 35


def test_times_of_nothing_are_no_error() -> None:
    served = Served(2)
    found = [served.ask(prompt, [0.0, 0.0]) for prompt in prompts(10)]
    assert found.count(0) == 5


def test_an_engine_that_sends_nothing_loses_its_prefixes_requests() -> None:
    served = Served(2)
    for prompt in prompts(10):
        served.ask(prompt, [0.1] * 2)
    home = served.ask(SHARED, [0.1] * 2)
    placed = served.placed
    assert placed.place("a", [*SHARED, 1]) == home
    assert placed.place("b", [*SHARED, 2]) == home
    served.clock.now += 3.0
    assert placed.place("c", [*SHARED, 3]) == 1 - home
    for name in ("a", "b"):  # it goes on
        placed.advance(name, [1])
        placed.end(name)
    placed.observe(1 - home, (), BlockKeys(16).extend(SHARED), is_cleared=False)
    assert placed.place("d", [*SHARED, 4]) == home


def test_an_adapter_separates_prefixes() -> None:
    placed = Placement(2, LIMITS, clock=Clock())
    home = placed.place("a", SHARED, adapter="sql")
    placed.end("a")
    assert placed.place("b", SHARED) == 1 - home
    placed.end("b")
    assert placed.place("c", SHARED, adapter="sql") == home


def test_what_is_computed_of_a_prompt_counts_no_longer() -> None:
    served = Served(2)
    for prompt in prompts(10):
        served.ask(prompt, [0.1] * 2)  # a millisecond for each token
    home = served.ask(SHARED, [0.32] * 2)
    served.placed.place("long", list(range(1000, 2000)), engine=home)
    assert served.placed.place("early", [*SHARED, *range(100)]) == 1 - home
    served.placed.observe(1 - home, (), BlockKeys(16).extend(SHARED), is_cleared=False)
    served.placed.advance("early", [1])
    served.placed.end("early")
    served.placed.forget_prefixes()
    served.placed.observe(home, BlockKeys(16).extend(SHARED), (), is_cleared=False)
    served.clock.now += 0.9
    assert served.placed.place("late", [*SHARED, *range(100)]) == home


def test_few_engines_are_compared_and_few_keys_looked_up() -> None:
    placed = Placement(1000, LIMITS, clock=Clock())
    for number in range(1000):
        placed.observe(number, BlockKeys(16).extend(SHARED[:160]), (), is_cleared=False)
    placed.observe(500, BlockKeys(16).extend(SHARED), (), is_cleared=False)
    looked_up = []

    class Counted(dict[bytes, int]):
        def get(self, key: bytes, default: int = 0) -> int:  # type: ignore[override]
            looked_up.append(key)
            return super().get(key, default)

    placed._holders = Counted(placed._holders)
    for one in placed._engines.values():
        one.index._holders = placed._holders
    compared = placed._compared(BlockKeys(16).extend(SHARED))
    assert compared[500] == 20
    assert len(compared) <= 10
    assert len(looked_up) <= 14
    assert placed.place("a", [*SHARED, 1]) == 500
    assert len({placed.place(str(number), [*SHARED[:200], number]) for number in range(40)}) > 20


def test_a_new_engine_takes_the_place_of_one_that_went() -> None:
    placed = Placement(3, LIMITS, clock=Clock())
    for number in range(3, 200):
        placed.take_out(number - 3)
        placed.bring_in(number)
    assert len(placed._numbers) == 3
    placed.observe(198, BlockKeys(16).extend(SHARED), (), is_cleared=False)
    assert placed.place("a", SHARED) == 198
    placed.take_out(198)
    assert not placed._holders
    assert placed.place("b", SHARED) in {197, 199}


def test_keys_of_all_engines_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_module, "_MOST_KEYS", 40)
    placed = Placement(4, LIMITS, clock=Clock())
    for number, prompt in enumerate(prompts(30)):
        placed.place(str(number), prompt)
    assert max(len(one.index) for one in placed._engines.values()) == 10


def test_overlaps_are_those_of_each_index() -> None:
    rng, holders = random.Random(5), Holders()
    indices = [PrefixIndex(1000, holders, number) for number in range(70)]
    for _ in range(200):
        keys = BlockKeys(4).extend([rng.randrange(3) for _ in range(rng.randrange(60))])
        rng.choice(indices).add(keys)
    keys = BlockKeys(4).extend([rng.randrange(3) for _ in range(80)])
    for index in indices:
        index.add(keys[: rng.randrange(21)])
    among = sum(1 << number for number in range(70) if rng.random() < 0.8)
    found = by_overlap(holders, keys, among)
    assert sum(places for places, _ in found) == among
    assert [count for _, count in found] == sorted((count for _, count in found), reverse=True)
    for places, count in found:
        for number, index in enumerate(indices):
            if places >> number & 1:
                assert index.num_found(keys) == count


def test_keys_of_blocks_are_those_of_each_block() -> None:
    rows = [InputRows(5, 4, b"a" * 32), InputRows(30, 9, b"b" * 32)]
    tokens = list(range(1000, 1067))
    keys, parent = [], b"root"
    for first in range(0, 64, 8):
        extra = extra_of(rows, first, first + 8)
        parent = hash_block(parent, tokens[first : first + 8], extra)
        keys.append(parent)
    assert hash_blocks(b"root", tokens, 8, rows) == keys
    assert hash_blocks(keys[2], tokens[24:], 8, rows, 24) == keys[3:]
    assert hash_blocks(b"root", tokens[:7], 8) == []
