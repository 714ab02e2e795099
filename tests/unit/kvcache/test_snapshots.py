"""Snapshots of recurrent states: when they are taken, how a request continues from one, and that no
block is lost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quire.config.kv_groups import FullGroup, KVShape
from quire.config.kv_layout import KVLayout
from quire.config.records import CacheConfig
from quire.config.state_groups import StateGroup, StateShape
from quire.kvcache import KVCacheManager, SequenceBlocks

BLOCK = 16
STATE_BLOCKS = 3
TOKENS = list(range(1000))


def manager(num_blocks: int = 64, block_size: int = BLOCK) -> KVCacheManager:
    states = StateGroup((1,), KVShape(0, 0, 0), (StateShape(STATE_BLOCKS, 16),))
    full = FullGroup((0,), KVShape(1, 1, 1))
    config = CacheConfig(
        block_size=block_size, num_blocks=num_blocks, block_bytes=64, kv_cache_dtype="float32",
        layout=KVLayout((full, states), 1).sized(64), enable_prefix_caching=True, fingerprint="f",
    )  # fmt: skip
    return KVCacheManager(config, max_chunk=1000)


def begin(kv: KVCacheManager, tokens: list[int]) -> tuple[SequenceBlocks, int]:
    """A request with its prefix hit, and how many tokens that spares it."""
    blocks = kv.open()
    prefix = kv.get_computed_blocks(blocks, tokens)
    kv.take_hits(blocks, prefix)
    return blocks, prefix.num_tokens(kv.block_size)


def compute(kv: KVCacheManager, blocks: SequenceBlocks, tokens: list[int], done: int) -> None:
    """All that is left of a prompt, in the steps that snapshots ask for, and one token more."""
    while done < len(tokens):
        count = kv.within_snapshot(blocks, done, len(tokens) - done)
        assert count > 0
        assert kv.allocate_slots(blocks, tokens, done, done + count) is not None
        if done >= blocks.snapshot_due:
            kv.take_snapshot(blocks, tokens, done)
        kv.check_integrity()
        done += count
    assert kv.allocate_slots(blocks, tokens, done, done + 1) is not None
    if done >= blocks.snapshot_due:
        kv.take_snapshot(blocks, tokens, done)
    kv.check_integrity()


@pytest.mark.parametrize("num_tokens", [17, 31, 32, 33, 47, 48, 49, 100])
def test_a_prompt_is_found_again_up_to_its_last_block(num_tokens: int) -> None:
    kv, tokens = manager(), TOKENS[:num_tokens]
    blocks, hit = begin(kv, tokens)
    assert hit == 0
    compute(kv, blocks, tokens, 0)
    again, hit = begin(kv, tokens)
    assert hit == (num_tokens - 1) // BLOCK * BLOCK
    assert kv.allocate_slots(again, tokens, hit, num_tokens) is not None
    assert again.tables[1] != blocks.tables[1]
    snapshot, start = kv.take_copies()
    assert (snapshot.sources, start.targets) == (blocks.tables[1], again.tables[1])
    assert start.sources == snapshot.targets
    for one in (blocks, again):
        kv.free(one, num_tokens)
    kv.check_integrity()
    assert kv.pool.num_held == 0


def test_where_prompts_part_the_second_takes_a_snapshot() -> None:
    kv = manager()
    first, _ = begin(kv, TOKENS[:100])
    compute(kv, first, TOKENS[:100], 0)
    other = TOKENS[:52] + [7] * 40
    second, hit = begin(kv, other)
    assert hit == 0, "no state is known where they part"
    compute(kv, second, other, 0)
    third = TOKENS[:50] + [9] * 40
    assert begin(kv, third)[1] == 48


def test_blocks_that_are_given_back_are_a_snapshot() -> None:
    kv, tokens = manager(), TOKENS[:90]
    blocks, _ = begin(kv, tokens[:40])
    compute(kv, blocks, tokens[:40], 0)
    kv.allocate_slots(blocks, tokens, 41, 80)
    kv.offer(blocks, tokens, 80)
    kv.offer_state(blocks, tokens, 80, 80)
    kv.free(blocks, 80)
    kv.take_copies()
    assert begin(kv, tokens)[1] == 80


@pytest.mark.parametrize(("collected", "computed"), [(79, 81), (60, 80)])
def test_a_state_that_went_on_is_none(collected: int, computed: int) -> None:
    """A plan moved the state on, and what it computed is void."""
    kv, tokens = manager(), TOKENS[:90]
    blocks = kv.open()
    kv.allocate_slots(blocks, tokens, 0, computed)
    kv.offer_state(blocks, tokens, collected, computed)
    kv.free(blocks, collected)
    assert begin(kv, tokens)[1] == 0


def test_without_room_for_a_copy_the_snapshot_is_taken_over() -> None:
    tokens = TOKENS[:60]
    kv = manager(STATE_BLOCKS + 4)
    blocks, _ = begin(kv, tokens)
    compute(kv, blocks, tokens[:59], 0)
    kv.offer_state(blocks, tokens, 59, 59)
    kv.free(blocks, 59)
    again, hit = begin(kv, tokens)
    assert hit == 48
    assert kv.allocate_slots(again, tokens, hit, 60) is not None
    assert kv.take_copies() == []
    kv.check_integrity()
    assert begin(kv, tokens)[1] == 0, "the request writes to it"


def test_a_lost_plan_leaves_no_snapshot() -> None:
    kv, tokens = manager(), TOKENS[:60]
    blocks, _ = begin(kv, tokens)
    compute(kv, blocks, tokens, 0)
    kv.withdraw(blocks, 48)
    kv.offer_state(blocks, tokens, 48, 60)
    kv.free(blocks, 48)
    kv.check_integrity()
    assert begin(kv, tokens)[1] == 0


def test_what_a_failed_request_has_computed_is_forgotten() -> None:
    kv, tokens = manager(), TOKENS[:60]
    blocks, _ = begin(kv, tokens)
    compute(kv, blocks, tokens, 0)
    kv.forget(blocks)
    kv.free(blocks, 60)
    kv.check_integrity()
    assert begin(kv, tokens)[1] == 0


def test_blocks_longer_than_a_chunk() -> None:
    """A snapshot is taken only where a block and a chunk end together."""
    kv, tokens = manager(block_size=32), TOKENS[:100]
    blocks, _ = begin(kv, tokens)
    compute(kv, blocks, tokens, 0)
    assert begin(kv, tokens)[1] == 96


def test_pieces_lie_within_blocks() -> None:
    group = StateGroup((0, 1), KVShape(0, 0, 0), (StateShape(3, 20), StateShape(2, 33)))
    offsets = group.offsets(320)
    assert offsets == {0: [(0, 0), (0, 128), (1, 0)], 1: [(1, 128), (2, 0)]}
    assert group.sized(320).num_blocks == 3
    layout = KVLayout((group,), 1)
    assert layout.block_bytes(0) == group.num_bytes == 3 * 128 + 2 * 192
    assert layout.block_bytes(100) == 192
    assert replace(layout, groups=()).block_bytes(100) == 100
