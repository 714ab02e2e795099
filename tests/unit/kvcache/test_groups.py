"""Groups with windows: what is given back, what stays findable, and what a prefix must have.

Blocks have 4 tokens.
"""

from __future__ import annotations

import random

import pytest
from kv_layouts import layout_of

from quire.config.records import CacheConfig
from quire.errors import IntegrityError
from quire.kvcache import CachedPrefix, KVCacheManager, SequenceBlocks

TOKENS = list(range(200))


def manager(num_blocks: int, *windows: int | None, max_chunk: int = 8) -> KVCacheManager:
    config = CacheConfig(4, num_blocks, "float32", True, 1, layout_of(*windows))
    return KVCacheManager(config, max_chunk)


def advance(
    kv: KVCacheManager, blocks: SequenceBlocks, begin: int, end: int, tokens: list[int] = TOKENS
) -> None:
    """Computes tokens begin .. end - 1 in steps of as much as is allowed."""
    for computed in range(begin, end, kv.max_chunk):
        after = min(computed + kv.max_chunk, end)
        assert kv.allocate_slots(blocks, tokens, computed, after) is not None
        kv.check_integrity()


def run(kv: KVCacheManager, length: int, tokens: list[int] = TOKENS) -> None:
    """A request that computes so many tokens and leaves."""
    blocks = kv.open()
    advance(kv, blocks, 0, length, tokens)
    kv.free(blocks, length)
    kv.check_integrity()


def test_blocks_behind_the_window_are_given_back_as_soon_as_no_token_sees_them() -> None:
    kv = manager(8, 6, max_chunk=1)
    blocks = kv.open()
    for computed in range(40):
        # What every token but those that fill or begin a block relies on.
        if computed + 1 >= blocks.due:
            kv.allocate_slots(blocks, TOKENS, computed, computed + 1)
        first = max(0, computed - 5) // 4
        assert blocks.first_entries == [first]
        assert blocks.num_held == computed // 4 + 1 - first
        kv.check_integrity()


def test_a_chunk_holds_its_window_and_itself_and_then_gives_back() -> None:
    kv = manager(30, 9, None, max_chunk=24)
    blocks = kv.open()
    kv.allocate_slots(blocks, TOKENS, 0, 24)
    assert [len(table) for table in blocks.tables] == [6, 6]
    kv.allocate_slots(blocks, TOKENS, 24, 48)
    assert [len(table) for table in blocks.tables] == [8, 12]
    assert kv.allocate_slots(blocks, TOKENS, 48, 49) is not None
    assert [len(table) for table in blocks.tables] == [3, 13]
    assert blocks.first_entries == [10, 0]


def test_what_was_given_back_is_found_until_it_is_reused() -> None:
    kv = manager(12, 6)
    blocks = kv.open()
    advance(kv, blocks, 0, 32)
    assert blocks.num_held == 4
    prefix = kv.get_computed_blocks(kv.open(), TOKENS[:21])
    assert prefix.num_entries == 5
    assert prefix.first_entries == [3], "the next token sees 15 .. 20"
    advance(kv, blocks, 32, 64)
    assert kv.get_computed_blocks(kv.open(), TOKENS[:21]).num_entries == 0


def test_every_group_must_have_what_the_next_token_sees() -> None:
    kv = manager(40, 6, None)
    run(kv, 41)
    whole = kv.get_computed_blocks(kv.open(), TOKENS[:41])
    assert (whole.num_entries, whole.first_entries) == (10, [8, 0])
    kv.pool.unregister(whole.tables[0][1])
    shorter = kv.get_computed_blocks(kv.open(), TOKENS[:41])
    assert (shorter.num_entries, shorter.first_entries) == (9, [7, 0])
    kv.pool.unregister(shorter.tables[1][4])
    shortest = kv.get_computed_blocks(kv.open(), TOKENS[:41])
    assert (shortest.num_entries, shortest.first_entries) == (4, [2, 0])


@pytest.mark.parametrize("windows", [(6,), (None, 6), (3, None, 14), (1, 9, 9), (5, 30)])
def test_the_longest_prefix_is_found_whatever_is_missing(windows: tuple[int | None, ...]) -> None:
    rng = random.Random(len(windows))
    for _ in range(150):
        kv = manager(100, *windows, max_chunk=100)
        run(kv, 60)
        known = kv.get_computed_blocks(kv.open(), TOKENS[:61]).num_entries
        assert known == 15
        present = {(group, entry) for group in range(len(windows)) for entry in range(15)}
        blocks = kv.open()
        kv.get_computed_blocks(blocks, TOKENS[:61])
        for group, entry in rng.sample(sorted(present), rng.randint(1, 12)):
            block_id = kv.pool.lookup((group, blocks.keys[entry]))
            assert block_id is not None
            kv.pool.unregister(block_id)
            present.remove((group, entry))
        wanted = max(
            end
            for end in range(16)
            if all(
                (group, entry) in present
                for group, spec in enumerate(kv.layout.groups)
                for entry in range(spec.first_entry(end * 4, 4), end)
            )
        )
        prefix = kv.get_computed_blocks(blocks, TOKENS[:61])
        assert prefix.num_entries == wanted
        for group, (first, table) in enumerate(
            zip(prefix.first_entries, prefix.tables, strict=True)
        ):
            assert first == kv.layout.groups[group].first_entry(wanted * 4, 4)
            keys = [kv.pool.key_of(block_id) for block_id in table]
            assert keys == [(group, key) for key in blocks.keys[first:wanted]]
        kv.check_integrity()


def test_a_hit_begins_in_the_middle_and_goes_on() -> None:
    kv = manager(40, 6, None)
    run(kv, 41)
    blocks = kv.open()
    prefix = kv.get_computed_blocks(blocks, TOKENS[:41])
    free = kv.pool.num_free
    kv.take_hits(blocks, prefix)
    kv.check_integrity()
    assert kv.pool.num_free == free - 12
    advance(kv, blocks, 40, 60)
    assert blocks.first_entries == [(56 - 5) // 4, 0]
    ends = zip(blocks.first_entries, blocks.tables, strict=True)
    assert [first + len(table) for first, table in ends] == [15, 15]
    kv.free(blocks, 60)
    kv.check_integrity()
    assert kv.pool.num_held == 0


def test_groups_never_find_each_others_blocks() -> None:
    kv = manager(20, 100, 100)
    run(kv, 8)
    tables = kv.get_computed_blocks(kv.open(), TOKENS[:9]).tables
    assert sorted(block for table in tables for block in table) == [0, 1, 2, 3]


def test_room_is_counted_by_what_a_request_holds_at_once() -> None:
    """A window of 6 beside a chunk of 8 spans 13 tokens, in 4 blocks at most."""
    kv = manager(20, 6)
    assert kv.num_free_after(200, kv.no_prefix()) == 16
    blocks = kv.open()
    advance(kv, blocks, 0, 16)
    assert kv.num_missing(blocks, 200) == 4 - blocks.num_held
    assert kv.num_missing(blocks, 16) == 0
    run(kv, 41, list(range(1000, 1200)))
    prefix = kv.get_computed_blocks(kv.open(), list(range(1000, 1041)))
    assert [len(table) for table in prefix.tables] == [2]
    num_held, before = kv.pool.num_held, kv.num_free_after(60, prefix)
    other = kv.open()
    kv.take_hits(other, prefix)
    advance(kv, other, 40, 60, list(range(1000, 1200)))
    assert kv.pool.num_free >= before
    assert kv.pool.num_held - num_held <= 4
    assert (kv.longest(1000), manager(3, 6).longest(1000)) == (1000, 12)


def test_growth_beyond_the_pool_only_gives_back() -> None:
    kv = manager(5, 6, None, max_chunk=4)
    blocks = kv.open()
    advance(kv, blocks, 0, 8)
    assert kv.allocate_slots(blocks, TOKENS, 8, 16) is None
    assert [len(table) for table in blocks.tables] == [2, 2]
    kv.check_integrity()


def test_what_was_never_computed_is_not_found_in_any_group() -> None:
    kv = manager(40, 6, None, max_chunk=24)
    blocks = kv.open()
    advance(kv, blocks, 0, 48)
    assert blocks.first_entries[0] > 0
    kv.free(blocks, 26)
    kv.check_integrity()
    assert kv.get_computed_blocks(kv.open(), TOKENS[:48]).num_entries == 6
    kv = manager(40, 6, None, max_chunk=24)
    blocks = kv.open()
    advance(kv, blocks, 0, 48)
    kv.free(blocks, 0)
    kv.check_integrity()
    assert kv.pool.states() == "f" * 40, "blocks that were given back lose their keys, too"


def test_the_tails_of_all_groups_are_reused_before_their_beginnings() -> None:
    kv = manager(6, 100, None, max_chunk=12)
    run(kv, 12)
    other = kv.open()
    kv.allocate_slots(other, list(range(500, 504)), 0, 4)
    found = kv.get_computed_blocks(kv.open(), TOKENS[:13])
    assert found == CachedPrefix(2, [[0, 1], [3, 4]], [0, 0])


def test_integrity_check_notices_tables_that_are_wrong() -> None:
    def broken() -> tuple[KVCacheManager, SequenceBlocks]:
        kv = manager(40, 6, None)
        blocks = kv.open()
        advance(kv, blocks, 0, 30)
        return kv, blocks

    kv, blocks = broken()
    kv.pool.release([blocks.tables[1].pop(0)])
    blocks.first_entries[1] = 1
    with pytest.raises(IntegrityError, match="keeps all blocks but begins at entry 1"):
        kv.check_integrity()
    kv, blocks = broken()
    kv.pool.release([blocks.tables[1].pop(), blocks.tables[1].pop()])
    with pytest.raises(IntegrityError, match="ends before entries"):
        kv.check_integrity()
    kv, blocks = broken()
    blocks.tables[1][0], blocks.tables[1][1] = blocks.tables[1][1], blocks.tables[1][0]
    with pytest.raises(IntegrityError, match="the key of other tokens"):
        kv.check_integrity()
