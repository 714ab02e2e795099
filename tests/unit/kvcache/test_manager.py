"""KVCacheManager: hits, growth, and what a release leaves behind."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from kv_layouts import layout_of

from quire.config.records import CacheConfig
from quire.errors import IntegrityError
from quire.kvcache import CachedPrefix, KVCacheManager
from quire.kvcache.block_map import block_map
from quire.protocol import CacheScope


def manager(
    num_blocks: int = 8,
    caching: bool = True,
    *,
    windows: Sequence[int | None] = (None,),
    max_chunk: int = 100,
) -> KVCacheManager:
    layout = layout_of(*windows)
    return KVCacheManager(CacheConfig(4, num_blocks, "float32", caching, 1, layout), max_chunk)


def fill(kv: KVCacheManager, tokens: list[int]) -> None:
    """A request that computes all of `tokens` and leaves."""
    blocks = kv.open()
    assert kv.allocate_slots(blocks, tokens, 0, len(tokens)) is not None
    kv.free(blocks, len(tokens))


def hits(kv: KVCacheManager, tokens: list[int], salt: str | None = None) -> list[int]:
    """What the only group finds."""
    [table] = kv.get_computed_blocks(kv.open(CacheScope(salt)), tokens).tables
    return table


def test_slots_grow_by_whole_blocks() -> None:
    kv = manager()
    blocks = kv.open()
    tokens = list(range(9))
    assert kv.allocate_slots(blocks, tokens, 0, 4) == [[0]]
    assert kv.allocate_slots(blocks, tokens, 4, 4) == []
    assert kv.allocate_slots(blocks, tokens, 4, 9) == [[1, 2]]
    assert kv.usage == 3 / 8
    kv.check_integrity()


def test_growth_beyond_the_pool_changes_nothing() -> None:
    kv = manager(2)
    blocks = kv.open()
    assert kv.allocate_slots(blocks, list(range(12)), 0, 12) is None
    assert blocks.num_held == 0
    assert kv.pool.num_free == 2


def test_hits_end_before_the_last_token() -> None:
    kv = manager()
    fill(kv, list(range(8)))
    assert hits(kv, list(range(8))) == [0]
    assert hits(kv, list(range(9))) == [0, 1]
    assert hits(kv, [0, 1, 2, 3, 9, 5, 6, 7, 8]) == [0]
    assert hits(kv, [0]) == []


def test_no_hits_across_salts_or_without_caching() -> None:
    kv = manager()
    fill(kv, list(range(8)))
    assert hits(kv, list(range(9)), "mine") == []
    off = manager(caching=False)
    fill(off, list(range(8)))
    assert hits(off, list(range(9))) == []
    assert off.pool.states() == "f" * 8


def test_a_release_withdraws_what_was_never_computed() -> None:
    kv = manager()
    blocks = kv.open()
    tokens = list(range(12))
    kv.allocate_slots(blocks, tokens, 0, 12)
    assert hits(kv, tokens) == [0, 1]
    kv.free(blocks, 5)
    assert hits(kv, tokens) == [0]
    kv.check_integrity()


def test_the_tail_of_a_request_is_reused_before_its_beginning() -> None:
    kv = manager(3)
    fill(kv, list(range(12)))
    other = kv.open()
    kv.allocate_slots(other, list(range(50, 58)), 0, 8)
    kv.free(other, 0)
    assert hits(kv, list(range(12))) == [0]


def test_room_is_counted_with_the_hits_that_are_free() -> None:
    kv = manager(4)
    fill(kv, list(range(8)))
    prefix = kv.get_computed_blocks(kv.open(), list(range(16)))
    assert prefix == CachedPrefix(2, [[0, 1]], [0])
    assert kv.num_free_after(16, prefix) == 0
    blocks = kv.open()
    kv.take_hits(blocks, prefix)
    assert kv.num_free_after(16, prefix) == 0
    assert kv.num_missing(blocks, 16) == 2
    with pytest.raises(IntegrityError, match="needs empty block tables"):
        kv.take_hits(blocks, prefix)


def test_reset_needs_an_idle_cache() -> None:
    kv = manager()
    blocks = kv.open()
    kv.allocate_slots(blocks, list(range(4)), 0, 4)
    assert kv.reset_prefix_cache() is False
    kv.free(blocks, 4)
    assert kv.reset_prefix_cache() is True
    assert hits(kv, list(range(5))) == []


def test_block_map_counts_and_codes_states() -> None:
    kv = manager()
    fill(kv, list(range(8)))
    first, second = kv.open(), kv.open()
    prefix = kv.get_computed_blocks(first, list(range(5)))
    kv.take_hits(first, prefix)
    kv.take_hits(second, prefix)
    kv.allocate_slots(second, list(range(9)), 4, 9)
    found = block_map(kv)
    assert found["map"] == "s1c1u2f4"
    assert (found["free"], found["cached"], found["used"], found["shared"]) == (4, 1, 2, 1)
    assert found["num_blocks"] == 8
    assert found["usage"] == 3 / 8


def test_a_large_map_is_shown_in_cells() -> None:
    kv = manager(10_000)
    kv.allocate_slots(kv.open(), list(range(4)), 0, 4)
    found = block_map(kv)
    assert found["blocks_per_cell"] == 3
    assert found["map"] == "u1f3333"


def test_what_is_forgotten_is_found_by_nobody_be_it_anothers() -> None:
    kv = manager()
    tokens = list(range(12))
    fill(kv, tokens)  # computed and left by somebody
    blocks = kv.open()
    kv.allocate_slots(blocks, tokens, 0, 12)  # again, by one who reads no cache
    assert kv.get_computed_blocks(kv.open(), tokens).tables == [[0, 1]]
    kv.forget(blocks)
    assert kv.get_computed_blocks(kv.open(), tokens).num_entries == 0
    kv.check_integrity()
    kv.free(blocks, 12)
    kv.check_integrity()
    assert kv.pool.num_free == kv.pool.num_blocks
    fill(kv, tokens)
    assert kv.get_computed_blocks(kv.open(), tokens).num_entries == 2
