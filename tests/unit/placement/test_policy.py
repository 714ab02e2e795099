"""Where requests are placed: with their prefix, unless that engine has too much to do."""

from __future__ import annotations

import random
from collections.abc import Callable
from statistics import median

import pytest

from quire.placement import Placement
from quire.placement.policy import EngineLimits
from quire.placement.prefix_index import BlockKeys, PrefixIndex
from quire.protocol import CacheScope

LIMITS = EngineLimits(block_size=16, num_blocks=200, max_num_seqs=4, max_num_batched_tokens=256)
SHARED = list(range(160))


def no_time_passes() -> float:
    """A clock. What is placed here must not depend on how fast the test runs."""
    return 0.0


def placement(num_engines: int = 2, limits: EngineLimits = LIMITS) -> Placement:
    return Placement(num_engines, limits, clock=no_time_passes)


def finish(placed: Placement, request_id: str, num_tokens: int = 1) -> None:
    placed.advance(request_id, [7] * num_tokens)
    placed.end(request_id)


def test_requests_with_a_common_prefix_stay_together() -> None:
    placed = placement()
    first = placed.place("a", [*SHARED, 1])
    finish(placed, "a")
    other = placed.place("b", [5] * 40)
    finish(placed, "b")
    assert first != other
    assert [placed.place(str(n), [*SHARED, n]) for n in range(2)] == [first, first]


def test_a_long_queue_is_left_although_the_prefix_is_there() -> None:
    placed = placement()
    home = placed.place("a", [*SHARED, 1])
    finish(placed, "a")
    placed.place("long", [9] * 4000, engine=home)
    assert placed.place("b", [*SHARED, 2]) == 1 - home


def test_engines_of_equal_cost_take_turns() -> None:
    placed = placement(4)
    found = []
    for number in range(8):
        found.append(placed.place(str(number), [number + 1] * 40))
        finish(placed, str(number))
    assert sorted(found) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_full_engines_get_the_request_whose_turn_comes_first() -> None:
    placed = placement()
    for number in range(6):
        placed.place(str(number), [number + 1] * 20, engine=0)
        placed.advance(str(number), [1])
    assert placed.place("x", [100] * 20) == 1


def test_the_next_turn_of_a_conversation_finds_the_reply() -> None:
    placed = placement(3)
    prompt, reply = list(range(40)), list(range(100, 140))
    home = placed.place("a", prompt)
    placed.advance("a", reply[:1])
    placed.advance("a", reply[1:])
    placed.end("a")
    keys = BlockKeys(16)
    assert placed._engines[home].index.num_found(keys.extend([*prompt, *reply, 1, 2])) == 5


@pytest.mark.parametrize("num_tokens", [1, 16, 40])
def test_keys_that_were_computed_before_change_nothing(num_tokens: int) -> None:
    prompt, reply, scope = list(range(num_tokens)), list(range(100, 140)), CacheScope("tenant")
    indices = []
    for is_known in (False, True):
        placed = placement(1)
        known = placed.keys_of(prompt, scope, adapter="sql") if is_known else None
        placed.place("a", prompt, scope, adapter="sql", known_keys=known)
        placed.advance("a", reply)
        placed.end("a")
        indices.append(list(placed._engines[0].index._keys))
    assert indices[0] == indices[1]
    assert len(indices[0]) == (num_tokens + 40) // 16


def test_a_salt_separates_prefixes() -> None:
    placed = placement()
    home = placed.place("a", [*SHARED, 1], CacheScope("tenant"))
    finish(placed, "a")
    assert placed.place("b", [*SHARED, 2], CacheScope("other")) == 1 - home
    finish(placed, "b")
    assert placed.place("c", [*SHARED, 3], CacheScope("tenant")) == home


def test_an_aborted_request_leaves_nothing() -> None:
    placed = placement()
    placed.place("a", [3] * 100, engine=0)
    placed.end("a")
    placed.end("a")
    placed.advance("a", [1])
    assert (placed.num_open(0), placed._engines[0].num_waiting_tokens) == (0, 0)
    assert placed.engine_of("a") is None


def test_an_index_forgets_what_was_not_used_for_longest() -> None:
    index = PrefixIndex(4)
    old, new = BlockKeys(2).extend(range(6)), BlockKeys(2).extend(range(10, 14))
    index.add(old)
    index.add(new)
    assert (index.num_found(old), index.num_found(new), len(index)) == (2, 2, 4)
    index.clear()
    assert index.num_found(old) == 0


class Fleet:
    """Engines that compute one prompt after the other, each with a cache of prefixes."""

    def __init__(self, num_engines: int, num_blocks: int) -> None:
        self.caches = [PrefixIndex(num_blocks) for _ in range(num_engines)]
        self.free_at = [0.0] * num_engines
        self.num_found = self.num_asked = 0

    def compute(self, engine: int, prompt: list[int], now: float) -> float:
        """Returns when the prompt is done; 1,000 tokens take a second."""
        keys = BlockKeys(16).extend(prompt)
        found = 16 * self.caches[engine].num_found(keys)
        self.caches[engine].add(keys)
        self.num_found, self.num_asked = self.num_found + found, self.num_asked + len(prompt)
        self.free_at[engine] = max(now, self.free_at[engine]) + (len(prompt) - found) / 1000
        return self.free_at[engine]


def conversations(seed: int) -> list[tuple[float, list[int]]]:
    """Turns of 60 conversations over 6 system prompts, by time; each turn repeats all before."""
    rng = random.Random(seed)
    system = [[rng.randrange(1000) for _ in range(320)] for _ in range(6)]
    turns = []
    for _ in range(60):
        now, text = rng.uniform(0, 40), list(rng.choice(system))
        for _ in range(5):
            text = text + [rng.randrange(1000) for _ in range(rng.randint(30, 90))]
            turns.append((now, text))
            now += rng.uniform(3, 9)
    return sorted(turns)


def served(
    choose: Callable[[str, list[int]], int], placed: Placement | None
) -> tuple[float, float]:
    """Share of cached tokens, and the median time to the first token, on four engines."""
    fleet, waits, running = Fleet(4, 1200), list[float](), list[tuple[float, str]]()
    for number, (now, prompt) in enumerate(conversations(3)):
        for done in [one for one in running if one[0] <= now]:
            running.remove(done)
            if placed is not None:
                finish(placed, done[1])
        until = fleet.compute(choose(str(number), prompt), prompt, now)
        waits.append(until - now)
        running.append((until, str(number)))
    return fleet.num_found / fleet.num_asked, median(waits)


def test_conversations_wait_less_than_in_turns_and_find_nearly_all() -> None:
    limits = EngineLimits(16, 1200, 32, 512)
    placed = placement(4, limits)
    hits, wait_s = served(lambda name, prompt: placed.place(name, prompt), placed)
    turns = iter(range(10**6))
    hits_in_turns, wait_in_turns_s = served(lambda *_: next(turns) % 4, None)
    one_cache, _ = served(lambda *_: 0, None)
    assert hits >= 0.9 * one_cache
    assert hits > hits_in_turns
    assert wait_s <= 0.5 * wait_in_turns_s


@pytest.mark.parametrize("engine", [0, 1])
def test_a_caller_may_choose_the_engine(engine: int) -> None:
    assert placement().place("a", [1, 2], engine=engine) == engine


def test_an_engine_that_is_out_gets_nothing_and_forgets() -> None:
    placed = placement()
    home = placed.place("a", [*SHARED, 1])
    finish(placed, "a")
    placed.place("b", [*SHARED, 2])
    assert placed.take_out(home) == ["b"]
    assert placed.engine_of("b") is None
    assert placed.num_open(home) == 0
    assert [placed.place(str(n), [*SHARED, n]) for n in range(3)] == [1 - home] * 3
    placed.bring_in(home)
    assert placed.place("c", [99] * 40) == home


def test_engines_report_blocks() -> None:
    placed = placement(3)
    keys = BlockKeys(16).extend(SHARED)
    placed.observe(2, keys, (), is_cleared=False)
    assert placed.place("a", SHARED) == 2
    finish(placed, "a")
    placed.observe(2, (), keys, is_cleared=False)
    placed.observe(1, keys[:4], (), is_cleared=False)
    assert placed.place("b", SHARED) == 1
    finish(placed, "b")
    placed.observe(1, keys[:1], (), is_cleared=True)
    placed.observe(0, keys[:2], (), is_cleared=False)
    assert placed.place("c", SHARED) == 0
    placed.observe(9, keys, (), is_cleared=False)  # it is gone


def test_work_of_other_front_ends_counts() -> None:
    placed = placement()
    placed.note_elsewhere(0, 10_000)
    assert [placed.place(str(number), [number] * 40) for number in range(4)] == [1] * 4


def test_an_engine_that_is_retired_finishes_its_requests() -> None:
    placed = placement()
    home = placed.place("a", [*SHARED, 1])
    placed.retire(home)
    assert placed.place("b", [*SHARED, 2]) == 1 - home
    assert (placed.engine_of("a"), placed.num_open(home), placed.takes_requests) == (home, 1, True)
    placed.retire(1 - home)
    assert not placed.takes_requests


def test_an_engine_that_comes_late_takes_turns() -> None:
    placed = placement()
    for number in range(20):
        placed.place(str(number), [number + 1] * 40)
        finish(placed, str(number))
    placed.bring_in(7)
    found = []
    for number in range(30, 36):
        found.append(placed.place(str(number), [number + 1] * 40))
        finish(placed, str(number))
    assert sorted(found) == [0, 0, 1, 1, 7, 7]
