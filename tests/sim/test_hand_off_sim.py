"""A prompt that one engine computes, up to its last token but one, and another one goes on with."""

from __future__ import annotations

import random

import pytest
from dict_tier import DictTier
from fake_model import POISON, Simulation
from stored_simulation import WINDOWS, flush, simulation, tokens_of

from quire.kvstore.chunks import ChunkKey

SIZE = 4
"""Tokens of a block."""
LENGTHS = [1, 2, SIZE - 1, SIZE, SIZE + 1, 2 * SIZE, 2 * SIZE + 1, 2 * SIZE + 2, 39, 40, 41, 42]


def first_leg(tier: DictTier, prompt: list[int], num_tokens: int = 1, **options: object) -> str:
    """The name of the K/V that is there afterwards."""
    with simulation([tier], **options) as first:
        first.add("a", prompt, num_tokens, hands_off=True)
        first.run()
        flush(first)
        return first.kv_names["a"] or ""


def count(simulated: Simulation, name: str) -> dict[str, float]:
    assert simulated.store is not None
    return simulated.store.counts.as_dict().get(name, {})


def tails(tier: DictTier, prompt: list[int], windows: tuple[int | None, ...]) -> list[ChunkKey]:
    """The chunks of a prompt's tail that are there, by name alone."""
    with simulation([DictTier()], windows=windows) as simulated:
        kv = simulated.scheduler.kv
        blocks = kv.open()
        tail = kv.tail_of(blocks, prompt, len(prompt))
        assert tail is not None
        keys = [ChunkKey(blocks.namespace, tail.digest, group) for group in range(len(windows))]
    return [key for key in keys if key in tier.chunks]


@pytest.mark.parametrize("is_local", [True, False])
@pytest.mark.parametrize("windows", WINDOWS, ids=str)
@pytest.mark.parametrize("length", LENGTHS)
def test_the_second_leg_computes_one_token(
    windows: tuple[int | None, ...], is_local: bool, length: int
) -> None:
    tier, prompt = DictTier(is_local=is_local), tokens_of("prompt", length)
    name = first_leg(tier, prompt, windows=windows)
    with simulation([tier], windows=windows) as second:
        second.add("b", prompt, 11, awaited_kv=name)
        plan = None
        while plan is None:
            plan = second.step()
        assert plan.num_scheduled_tokens == [1]
        second.run()
        assert second.num_hit_tokens == length - 1
        if None in windows:  # others load what a window sees
            assert sum(count(second, "hit_tokens").values()) == length - 1
        assert not count(second, "load_abandoned")


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("length", [3, 22, 23, 24])
def test_generated_tokens_are_no_part_of_it(length: int, depth: int) -> None:
    few, many, prompt = DictTier(), DictTier(), tokens_of("prompt", length)
    first_leg(few, prompt)
    first_leg(many, prompt, 9, depth=depth)
    [key] = tails(few, prompt, (None,))
    assert many.chunks[key] == few.chunks[key]


def test_a_tail_is_stored_for_another_engine_alone() -> None:
    tier, prompt = DictTier(), tokens_of("prompt", 22)
    with simulation([tier]) as first:
        first.add("a", prompt, 5)
        first.run()
        flush(first)
    assert not tails(tier, prompt, (None,))
    first_leg(tier, prompt)
    assert tails(tier, prompt, (None,))
    with simulation([tier]) as second:
        second.add("b", prompt, 5)
        second.run()
        assert second.num_hit_tokens == 20


@pytest.mark.parametrize("windows", WINDOWS, ids=str)
def test_without_all_of_the_tail_the_rest_is_computed(windows: tuple[int | None, ...]) -> None:
    tier, prompt = DictTier(), tokens_of("prompt", 22)
    name = first_leg(tier, prompt, windows=windows)
    del tier.chunks[tails(tier, prompt, windows)[-1]]
    with simulation([tier], windows=windows) as second:
        assert second.store is not None
        second.store.compute.observe(16, 0.16)
        second.add("b", prompt, 5, awaited_kv=name)
        second.run()
        assert second.num_hit_tokens == 20


def test_a_damaged_tail_is_computed() -> None:
    tier, prompt = DictTier(), tokens_of("prompt", 22)
    name = first_leg(tier, prompt)
    [key] = tails(tier, prompt, (None,))
    tier.chunks[key] = tier.chunks[key][:-1] + bytes([tier.chunks[key][-1] ^ 1])
    with simulation([tier]) as second:
        second.add("b", prompt, 5, awaited_kv=name)
        second.run()
        assert second.num_hit_tokens == 20
        assert count(second, "corrupt") == {"dict": 1}


def test_a_tail_is_loaded_where_the_pool_has_the_blocks() -> None:
    """Also if the tiers have lost these."""
    tier, prompt = DictTier(), tokens_of("prompt", 22)
    name = first_leg(tier, prompt)
    with simulation([tier]) as second:
        second.add("a", [*prompt[:20], 7], 5)
        second.run()
        kept = tails(tier, prompt, (None,))
        tier.chunks = {key: data for key, data in tier.chunks.items() if key in kept}
        second.add("b", prompt, 5, awaited_kv=name)
        second.run()
        assert second.num_hit_tokens == 20 + 21


@pytest.mark.parametrize("windows", WINDOWS, ids=str)
def test_one_tail_for_several_requests(windows: tuple[int | None, ...]) -> None:
    """Whoever starts first has the block for itself; the others compute, or load again."""
    tier, prompt = DictTier(), tokens_of("prompt", 22)
    name = first_leg(tier, prompt, windows=windows)
    with simulation([tier], windows=windows) as second:
        for number in range(4):
            second.add(str(number), prompt, 9, awaited_kv=name)
        second.run()
        second.add("last", prompt, 9, awaited_kv=name)
        second.run()
        assert second.num_hit_tokens >= 21 + 3 * 20 + 21


@pytest.mark.parametrize("num_steps", range(8))
def test_a_request_that_ends_leaves_a_tail_that_can_be_reused(num_steps: int) -> None:
    tier, prompt = DictTier(), tokens_of("prompt", 22)
    name = first_leg(tier, prompt)
    with simulation([tier], 12) as second:
        second.add("b", prompt, 9, awaited_kv=name)
        for _ in range(num_steps):
            second.step()
        second.abort("b")
        assert second.scheduler.kv.pool.num_held == 0
        for number in range(3):
            second.add(str(number), tokens_of(str(number), 30), 9)
        second.run()


def test_a_preempted_request_begins_with_its_full_blocks() -> None:
    tier, prompts = DictTier(), [tokens_of(str(number), 22) for number in range(4)]
    names = [first_leg(tier, prompt) for prompt in prompts]
    with simulation([tier], 20, max_model_len=60) as second:
        for number, prompt in enumerate(prompts):
            second.add(str(number), prompt, 30, awaited_kv=names[number])
        second.run()
        assert second.num_preemptions
        assert second.num_hit_tokens == 4 * 21


def test_the_tail_of_a_request_that_fails_is_dropped() -> None:
    tier, prompt = DictTier(), [*tokens_of("prompt", 20), POISON, 3, 4]
    first_leg(tier, prompt)
    for _ in range(100):  # it is dropped by a thread
        if not tails(tier, prompt, (None,)):
            break
    assert not tails(tier, prompt, (None,))


def test_a_tail_is_awaited_no_longer_than_computing_takes() -> None:
    tier, prompt = DictTier(), tokens_of("prompt", 22)
    with simulation([tier]) as second:
        assert second.store is not None
        second.store.compute.observe(16, 0.016)
        second.add("b", prompt, 5, awaited_kv="")
        second.run()
        assert second.num_hit_tokens == 0


@pytest.mark.sweep(12)
@pytest.mark.parametrize("seed", range(30))
def test_random_second_legs(seed: int) -> None:
    """Prompts that begin alike go on elsewhere, several times each, are aborted and preempted, over
    a tier that fails, loses and damages."""
    choose = random.Random(seed)
    tier, windows, depth = DictTier(), choose.choice(WINDOWS), choose.choice((1, 2))
    prompts = []
    for number in range(5):
        shared = tokens_of(str(choose.randrange(2)), choose.randrange(1, 30))
        prompts.append([*shared, *tokens_of(f"own {number}", choose.randrange(1, 9))])
    options = {"windows": windows, "depth": depth, "max_model_len": 80}
    names = [first_leg(tier, prompt, choose.choice((1, 6)), **options) for prompt in prompts]
    tier.failing = choose.choice((0.0, 0.0, 0.3))
    tier.damaged = choose.choice((0.0, 0.0, 0.2))
    tier.lost = choose.choice((0.0, 0.0, 0.2))
    with simulation([tier], choose.choice((60, 90, 200)), **options) as second:
        assert second.store is not None
        second.store.compute.observe(16, 0.016)
        for number in range(12):
            which = choose.randrange(len(prompts))
            name = choose.choice((names[which], names[which], None))
            second.add(str(number), prompts[which], choose.randrange(1, 20), awaited_kv=name)
            for _ in range(choose.randrange(6)):
                if second.scheduler.has_unfinished_requests():
                    second.step()
            if choose.random() < 0.15:
                second.abort(str(number))
            if choose.random() < 0.1:
                second.scheduler.reset_prefix_cache(reset_running_requests=True)
        second.run()
