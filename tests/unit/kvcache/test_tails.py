"""Blocks that are not full: found once, then the request's alone."""

from __future__ import annotations

import pytest
from kv_layouts import layout_of

from quire.config.records import CacheConfig
from quire.kvcache import CachedPrefix, KVCacheManager, SequenceBlocks, hash_block
from quire.protocol import CacheScope

SIZE = 4


def manager(*windows: int | None, caching: bool = True, num_blocks: int = 12) -> KVCacheManager:
    layout = layout_of(*(windows or (None,)))
    return KVCacheManager(CacheConfig(SIZE, num_blocks, "float32", caching, 1, layout), 100)


def load(kv: KVCacheManager, tokens: list[int]) -> SequenceBlocks:
    """A request of which the pool has all but the last token."""
    blocks = kv.open()
    groups = range(len(kv.layout.groups))
    tail = kv.tail_of(blocks, tokens, len(tokens))
    keys = [(group, key) for key in blocks.keys for group in groups]
    keys += [] if tail is None else [tail.key(group) for group in groups]
    kv.reservations.complete(kv.reservations.reserve(kv.no_prefix(), keys), keys, blocks, tokens)
    kv.check_integrity()
    return blocks


def find(kv: KVCacheManager, blocks: SequenceBlocks, tokens: list[int]) -> CachedPrefix:
    return kv.get_computed_blocks(blocks, tokens, with_tail=True)


@pytest.mark.parametrize("length", range(1, 14))
def test_a_tail_is_what_is_behind_the_full_blocks_but_the_last_token(length: int) -> None:
    kv, tokens = manager(), list(range(length))
    blocks = kv.open()
    tail = kv.tail_of(blocks, tokens, length)
    num_full, count = divmod(length - 1, SIZE)
    assert len(blocks.keys) == num_full
    if not count:
        assert tail is None
        return
    assert tail is not None
    parent = blocks.keys[-1] if num_full else blocks.root
    assert tail.digest == hash_block(parent, tokens[num_full * SIZE : length - 1])
    assert tail.num_tokens == count
    assert tail.digest not in kv.keys_of(blocks, [*tokens, 0, 0, 0, 0], num_full + 1)


@pytest.mark.parametrize("windows", [(None,), (3,), (None, 6)], ids=str)
@pytest.mark.parametrize("length", [2, 4, 7, 8, 11, 12])
def test_a_request_that_starts_has_it_alone(windows: tuple[int | None, ...], length: int) -> None:
    kv, tokens = manager(*windows), list(range(length))
    blocks = load(kv, tokens)
    assert kv.get_computed_blocks(blocks, tokens).num_tail_tokens == 0
    prefix = find(kv, blocks, tokens)
    assert prefix.num_tokens(SIZE) == length - 1
    free_before = kv.num_free_after(length, prefix)
    kv.take_hits(blocks, prefix)
    kv.check_integrity()
    assert find(kv, kv.open(), tokens).num_tokens(SIZE) == (length - 1) // SIZE * SIZE
    assert kv.allocate_slots(blocks, tokens, length - 1, length) == []
    kv.check_integrity()
    assert kv.pool.num_free >= free_before
    # With its last token a block may be full: then it has a key as any other block.
    kv.free(blocks, length)
    kv.check_integrity()
    assert find(kv, kv.open(), [*tokens, 0]).num_tokens(SIZE) == length // SIZE * SIZE


def test_a_tail_is_of_no_use_without_the_blocks_before_it() -> None:
    kv, tokens = manager(), list(range(7))
    blocks = load(kv, tokens)
    kv.forget(blocks)
    assert find(kv, blocks, tokens) == kv.no_prefix()
    kv.check_integrity()


def test_a_tail_that_may_be_invalid_is_forgotten() -> None:
    kv, tokens = manager(None, 6), list(range(3))
    blocks = load(kv, tokens)
    kv.forget(blocks, kv.tail_of(blocks, tokens, 3))
    assert find(kv, blocks, tokens) == kv.no_prefix()
    kv.check_integrity()


def test_a_tail_of_which_a_group_lacks_its_block_is_none() -> None:
    kv, tokens = manager(None, 6), list(range(7))
    blocks = load(kv, tokens)
    tail = kv.tail_of(blocks, tokens, 7)
    assert tail is not None
    kv.pool.forget(tail.key(1))
    assert find(kv, blocks, tokens).num_tokens(SIZE) == SIZE


def test_other_tokens_and_other_tenants_have_other_tails() -> None:
    kv, tokens = manager(), list(range(7))
    load(kv, tokens)
    for other in ([*tokens[:6], 9], tokens):
        assert find(kv, kv.open(), other).num_tail_tokens == 2
    for other in ([*tokens[:5], 9, 6], tokens[:6], [*tokens, 7], [1, *tokens[1:]]):
        assert find(kv, kv.open(), other).num_tail_tokens == 0
    assert find(kv, kv.open(CacheScope("salt")), tokens).num_tokens(SIZE) == 0


def test_a_tail_is_reused_as_other_blocks_are() -> None:
    kv, tokens = manager(num_blocks=2), list(range(7))
    blocks = load(kv, tokens)
    other = kv.open()
    assert kv.allocate_slots(other, [50, 51], 0, 2) is not None
    kv.free(other, 2)
    kv.check_integrity()
    assert find(kv, blocks, tokens).num_tokens(SIZE) == SIZE


def test_nothing_is_found_without_prefix_caching() -> None:
    kv, tokens = manager(caching=False), list(range(7))
    assert find(kv, load(kv, tokens), tokens) == kv.no_prefix()


def test_a_model_that_changes_takes_tails_with_it() -> None:
    kv, tokens = manager(), list(range(7))
    load(kv, tokens)
    assert kv.use_fingerprint("another")
    assert find(kv, kv.open(), tokens) == kv.no_prefix()
    kv.check_integrity()
