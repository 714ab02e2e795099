"""A KV store under the scheduler: whatever the tiers do, every request gets its own tokens."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator

import pytest
from dict_tier import DictTier
from fake_model import POISON
from stored_simulation import WINDOWS, flush, simulation, tokens_of

from quire.kvstore.costs import ReadCosts
from quire.protocol import CacheScope
from quire.scheduler.stored_kv import loads as loads_module


def store(prompt: list[int], tier: DictTier) -> None:
    """Computes a prompt, and writes its K/V."""
    with simulation([tier]) as first:
        first.add("a", prompt, 4)
        first.run()
        flush(first)


@pytest.mark.parametrize("is_local", [True, False])
@pytest.mark.parametrize("windows", WINDOWS, ids=str)
@pytest.mark.parametrize("length", [9, 33, 40, 41, 47])
def test_another_engine_finds_the_prefix(
    windows: tuple[int | None, ...], is_local: bool, length: int
) -> None:
    tier = DictTier(is_local=is_local)
    prompt = tokens_of("prompt", length)
    with simulation([tier], windows=windows) as first:
        first.add("a", prompt, 5)
        first.run()
        flush(first)
    with simulation([tier], windows=windows) as second:
        second.add("b", [*prompt, *tokens_of("more", 5)], 5)
        second.run()
        assert second.num_hit_tokens == max(length // 8 * 8, (length - 1) // 4 * 4)
    assert tier.num_reads


def test_a_next_turn_hits_up_to_the_last_full_block() -> None:
    tier = DictTier()
    prompt = tokens_of("prompt", 21)
    with simulation([tier], chunk_blocks=4) as first:
        first.add("a", prompt, 9)
        first.run()
        flush(first)
        turn = [*prompt, *first.got["a"]]
    with simulation([tier], chunk_blocks=4) as second:
        second.add("b", [*turn, 1, 2, 3], 3)
        second.run()
        assert second.num_hit_tokens == 28  # of 29 tokens with K/V, in blocks of 4


@pytest.mark.parametrize("windows", WINDOWS, ids=str)
def test_turns_that_begin_with_a_hit_are_stored(windows: tuple[int | None, ...]) -> None:
    """Each turn finds the one before in the pool, and a restart finds them all."""
    tier = DictTier()
    turn = tokens_of("prompt", 13)
    with simulation([tier], windows=windows, chunk_blocks=4) as first:
        for number in range(5):
            first.add(str(number), turn, 3)
            first.run()
            turn = [*turn, *first.got[str(number)], *tokens_of(str(number), 7)]
        flush(first)
    for length in (20, 30, 40, 50):
        with simulation([tier], windows=windows, chunk_blocks=4) as second:
            second.add("b", [*turn[:length], 1, 2], 3)
            second.run()
            assert second.num_hit_tokens >= length // 16 * 16  # whole chunks of 16 tokens


def test_what_is_stored_is_not_stored_again() -> None:
    tier = DictTier()
    prompt = tokens_of("prompt", 40)
    for turn in range(3):
        with simulation([tier]) as simulated:
            simulated.add("a", prompt, 4)
            simulated.run()
            flush(simulated)
        if turn == 0:
            num_writes = tier.num_writes
    assert tier.num_writes == num_writes


@pytest.mark.parametrize("length", [9, 13, 16, 17, 30])
def test_nothing_is_kept_of_a_request_that_fails(length: int) -> None:
    """Chunks that were stored while its prompt was computed, whole ones and the end."""
    tier = DictTier()
    prompt = [*tokens_of("prompt", length - 1), POISON]
    with simulation([tier], budget=4) as simulated:
        simulated.add("a", prompt, 5)
        while simulated.scheduler.has_work():
            simulated.step()
            flush(simulated)
        assert tier.num_writes
    assert not tier.chunks  # once the threads of the store have ended


def test_other_tokens_and_other_salts_find_nothing() -> None:
    tier = DictTier()
    prompt = tokens_of("prompt", 40)
    with simulation([tier]) as first:
        first.add("a", prompt, 4, scope=CacheScope("one"))
        first.run()
        flush(first)
    with simulation([tier]) as second:
        second.add("b", prompt, 4, scope=CacheScope("two"))
        second.add("c", prompt, 4)
        second.add("d", [prompt[0] + 1, *prompt[1:]], 4, scope=CacheScope("one"))
        second.run()
    assert tier.num_reads == 0


@pytest.fixture(params=[0.005, 0.2], ids=["writes soon", "writes late"])
def other_threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """The thread that writes gets the interpreter soon, or when all is over."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(request.param)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("other_threads")
@pytest.mark.parametrize("windows", WINDOWS, ids=str)
@pytest.mark.parametrize("depth", [1, 2])
def test_a_preempted_request_loads_what_it_had(windows: tuple[int | None, ...], depth: int) -> None:
    """Six requests in a pool for two of them. What still waits in the pool to be written is there
    as well. A thread that never ran in time saved nothing: then there is another attempt."""
    for _attempt in range(5):
        tier = DictTier()
        with simulation([tier], 40, windows=windows, depth=depth, max_model_len=80) as simulated:
            for number in range(6):
                simulated.add(str(number), tokens_of(str(number), 20), 40)
            simulated.run()
            if None not in windows:
                return
            assert simulated.num_preemptions
            if tier.num_reads or simulated.num_hit_tokens:
                return
    pytest.fail("no preempted request loaded anything")


@pytest.mark.sweep(20)
@pytest.mark.parametrize("seed", range(40))
def test_random_loads_and_failures(seed: int) -> None:
    """Requests with shared prefixes come, are aborted and preempted, over tiers that fail, lose,
    damage and delay; engines are started again over the same tiers."""
    choose = random.Random(seed)
    near, far = DictTier("near"), DictTier("far", is_local=False)
    windows, chunk_blocks = choose.choice(WINDOWS), choose.choice((1, 2, 4))
    for start in range(3):
        for tier in (near, far):
            tier.failing = choose.choice((0.0, 0.0, 0.3, 1.0))
            tier.damaged = choose.choice((0.0, 0.2))
            tier.lost = choose.choice((0.0, 0.2))
            tier.delay_s = choose.choice((0.0, 0.0, 0.001))
        options = {
            "windows": windows,
            "depth": choose.choice((1, 2)),
            "chunk_blocks": chunk_blocks,
            "max_model_len": 80,
            "policy": choose.choice(("fcfs", "priority")),
            "max_seqs": choose.choice((2, 8)),
        }
        with simulation([near, far], choose.choice((60, 90, 200)), **options) as simulated:
            for number in range(12):
                shared = tokens_of(str(choose.randrange(3)), choose.randrange(4, 40))
                own = tokens_of(f"{start} {number}", choose.randrange(1, 12))
                name = f"{start} {number}"
                length, priority = choose.randrange(1, 20), choose.randrange(3)
                simulated.add(name, [*shared, *own], length, priority=priority)
                for _ in range(choose.randrange(6)):
                    if simulated.scheduler.has_unfinished_requests():
                        simulated.step()
                if choose.random() < 0.15:
                    simulated.abort(name)
                if choose.random() < 0.1:
                    simulated.scheduler.reset_prefix_cache(reset_running_requests=True)
            simulated.run()


def test_a_tier_that_hangs_is_waited_for_no_longer_than_computing_takes() -> None:
    tier = DictTier()
    prompt = tokens_of("prompt", 60)
    store(prompt, tier)
    tier.delay_s = 0.5
    with simulation([tier]) as second:
        assert second.store is not None
        second.store.compute.observe(16, 1e-6)
        second.store.is_worth_loading = lambda *_: True  # type: ignore[method-assign]
        second.add("b", prompt, 4)
        second.run()
        counts = second.store.counts.as_dict()
        assert counts["load_abandoned"] == {"deadline": 1}


def test_a_first_load_waits_for_each_chunk_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything was computed: a tier from which nothing arrives is left, one that is slow and
    goes on is not."""
    monkeypatch.setattr(loads_module, "_CHUNK_IF_UNKNOWN_S", 0.3)
    prompt = tokens_of("prompt", 60)
    for delay_s, is_loaded in ((0.1, True), (0.9, False)):
        tier = DictTier()
        store(prompt, tier)
        with simulation([tier]) as second:
            assert second.store is not None
            tier.delay_s = delay_s
            second.add("b", prompt, 4)
            second.run()
            assert (second.num_hit_tokens > 0) is is_loaded
            abandoned = second.store.counts.as_dict().get("load_abandoned", {})
            assert abandoned == ({} if is_loaded else {"deadline": 1})


def test_loading_that_is_slower_than_computing_is_left() -> None:
    tier = DictTier()
    prompt = tokens_of("prompt", 60)
    store(prompt, tier)
    with simulation([tier]) as second:
        assert second.store is not None
        second.store.compute.observe(16, 1e-9)
        second.add("b", prompt, 4)
        second.run()
        assert second.store.counts.as_dict()["gate_skipped_tokens"]
    assert tier.num_reads == 0


@pytest.mark.parametrize(("token_s", "is_awaited"), [(1.0, True), (1e-6, False)])
def test_far_tiers_are_waited_for_in_proportion(token_s: float, is_awaited: bool) -> None:
    """One that takes twice the shortest wait to say what it has, where computing takes long and
    where it does not."""
    far = DictTier(is_local=False)
    prompt = tokens_of("prompt", 60)
    store(prompt, far)
    with simulation([far]) as second:
        assert second.store is not None
        far.delay_s = 0.1
        second.store.compute.observe(16, 16 * token_s)
        second.add("b", prompt, 4)
        second.run()
        assert (second.num_hit_tokens > 0) is is_awaited


def test_a_tier_that_was_slow_is_tried_again() -> None:
    costs = ReadCosts()
    costs.observe(1000, 10.0)
    before = costs.seconds(1000)
    assert before > 1
    for _ in range(200):
        costs.left_alone()
    assert costs.seconds(1000) < before / 1000


@pytest.mark.parametrize("is_local", [True, False])
@pytest.mark.parametrize("num_early", [3, 12, 25])
def test_what_is_there_is_loaded_while_the_rest_is_awaited(num_early: int, is_local: bool) -> None:
    """A prompt of 40 chunks that another engine stores, some of them late."""
    whole, tier = DictTier(), DictTier(is_local=is_local)
    prompt = tokens_of("prompt", 321)
    store(prompt, whole)
    tier.chunks = dict([*whole.chunks.items()][:num_early])
    with simulation([tier]) as second:
        assert second.store is not None
        second.store.compute.observe(16, 16.0)
        second.add("b", prompt, 4, awaited_kv="")
        num_loaded = num_early if num_early >= 8 else 0
        for _ in range(100):
            second.step()
            loaded = second.store.counts.as_dict().get("hit_tokens", {})
            if sum(loaded.values()) == num_loaded * 8 and second.scheduler.states.looking:
                break
        assert second.scheduler.states.looking
        assert sum(loaded.values()) == num_loaded * 8
        tier.chunks = {**whole.chunks}
        second.run()
        assert second.num_hit_tokens == 320
        assert sum(second.store.counts.as_dict()["hit_tokens"].values()) == 320


def test_a_request_that_ends_while_it_waits_leaves_nothing() -> None:
    tier, whole = DictTier(), DictTier()
    prompt = tokens_of("prompt", 321)
    store(prompt, whole)
    tier.chunks = dict([*whole.chunks.items()][:20])
    for num_steps in range(12):
        with simulation([tier]) as second:
            assert second.store is not None
            second.store.compute.observe(16, 16.0)
            second.add("b", prompt, 4, awaited_kv="")
            for _ in range(num_steps):
                second.step()
            second.abort("b")
            second.run()
            assert second.scheduler.kv.pool.num_held == 0
