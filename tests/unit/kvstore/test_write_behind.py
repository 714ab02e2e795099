"""What is stored is what the pool had when it was given, whatever becomes of the blocks."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator

import pytest
from dict_tier import DictTier

from quire.kvstore.chunk_file import decode
from quire.kvstore.chunks import ChunkKey, ChunkShape
from quire.kvstore.costs import GuardedTier, StoreCounts
from quire.kvstore.jobs import PoolChunk
from quire.kvstore.write_behind import WriteBehind

SHAPE = ChunkShape(2, 50)


class Pool:
    """Blocks of bytes."""

    def __init__(self, num_blocks: int) -> None:
        self.blocks = [bytes(SHAPE.block_bytes)] * num_blocks
        self.may_copy = threading.Event()
        self.may_copy.set()
        self.num_copies = 0

    def fill(self, block_ids: list[int], content: int) -> None:
        for block_id in block_ids:
            self.blocks[block_id] = bytes([content]) * SHAPE.block_bytes

    def chunk(self, number: int, block_ids: list[int]) -> PoolChunk:
        def copy_to(out: memoryview) -> bool:
            self.num_copies += 1
            for place, block_id in enumerate(block_ids):
                at = place * SHAPE.block_bytes
                out[at : at + SHAPE.block_bytes] = self.blocks[block_id]
                assert self.may_copy.wait(60)
            return True

        return PoolChunk(key_of(number), SHAPE, block_ids, copy_to)


def key_of(number: int) -> ChunkKey:
    return ChunkKey(bytes(32), number.to_bytes(32, "big"), 0)


@pytest.fixture
def tier() -> DictTier:
    return DictTier()


@pytest.fixture
def writes(tier: DictTier) -> Iterator[WriteBehind]:
    counts = StoreCounts()
    writes = WriteBehind([GuardedTier(tier, counts)], counts, 3 * SHAPE.num_bytes)
    yield writes
    writes.close(10)


def content(tier: DictTier, number: int) -> int | None:
    """What both blocks of a stored chunk are full of."""
    chunk = tier.chunks.get(key_of(number))
    if chunk is None:
        return None
    [found] = {*decode(chunk, key_of(number), SHAPE)}
    return int(found)


def test_a_chunk_waits_in_the_pool_and_is_copied_once(tier: DictTier, writes: WriteBehind) -> None:
    pool = Pool(4)
    pool.fill([1, 3], 7)
    writes.put_pooled(pool.chunk(1, [1, 3]))
    writes.put_pooled(pool.chunk(1, [1, 3]))
    assert writes.flush(10)
    assert content(tier, 1) == 7
    assert pool.num_copies == 1
    assert not writes.knows(key_of(1))


def test_blocks_that_are_reused_are_copied_before(tier: DictTier, writes: WriteBehind) -> None:
    pool, tier.delay_s = Pool(40), 0.05
    for number in range(12):
        block_ids = [2 * number, 2 * number + 1]
        pool.fill(block_ids, number)
        writes.put_pooled(pool.chunk(number, block_ids))
    for block_id in range(40):
        writes.before_reuse(block_id)
        pool.fill([block_id], 255)
        assert writes.num_queued_bytes <= 3 * SHAPE.num_bytes
    assert writes.flush(10)
    found = {number: content(tier, number) for number in range(12)}
    stored = [number for number in found if found[number] is not None]
    assert 3 <= len(stored) < 12, "some did not fit"
    assert all(found[number] == number for number in stored)


def test_a_block_is_not_reused_while_it_is_copied(tier: DictTier, writes: WriteBehind) -> None:
    pool = Pool(2)
    pool.fill([0, 1], 7)
    pool.may_copy.clear()
    writes.put_pooled(pool.chunk(1, [0, 1]))
    while not pool.num_copies:
        pass

    def reuse() -> None:
        writes.before_reuse(1)
        pool.fill([1], 255)

    thread = threading.Thread(target=reuse)
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()
    pool.may_copy.set()
    thread.join(60)
    assert writes.flush(10)
    assert content(tier, 1) == 7


def test_what_is_dropped_is_not_written(tier: DictTier, writes: WriteBehind) -> None:
    pool = Pool(8)
    pool.may_copy.clear()
    for number in range(4):
        writes.put_pooled(pool.chunk(number, [2 * number, 2 * number + 1]))
    while not pool.num_copies:
        pass
    writes.drop([key_of(0), key_of(2)])
    pool.may_copy.set()
    assert writes.flush(10)
    writes.close(10)  # what was being written is deleted afterwards
    assert [content(tier, number) for number in range(4)] == [None, 0, None, 0]


def test_what_leaves_the_pool_is_written(tier: DictTier, writes: WriteBehind) -> None:
    pool = Pool(8)
    writes.put_pooled(pool.chunk(9, [0, 1]))
    writes.leave_pool()
    assert writes.flush(10)
    assert content(tier, 9) == 0


def test_the_pool_is_not_read_after_closing(tier: DictTier) -> None:
    counts = StoreCounts()
    writes = WriteBehind([GuardedTier(tier, counts)], counts, SHAPE.num_bytes)
    pool, tier.delay_s = Pool(8), 0.2
    for number in range(4):
        writes.put_pooled(pool.chunk(number, [2 * number, 2 * number + 1]))
    writes.close(0.01)
    num_copies = pool.num_copies
    writes.put_pooled(pool.chunk(8, [0, 1]))
    writes.before_reuse(0)
    assert pool.num_copies == num_copies < 4


def test_a_copy_that_fails_is_no_chunk(tier: DictTier, writes: WriteBehind) -> None:
    def fails(_: memoryview) -> bool:
        raise RuntimeError

    writes.put_pooled(PoolChunk(key_of(1), SHAPE, [0, 1], lambda _: False))
    writes.put_pooled(PoolChunk(key_of(2), SHAPE, [0, 1], fails))
    assert writes.flush(10)
    assert not tier.chunks


@pytest.mark.parametrize("seed", range(8))
def test_many_threads(tier: DictTier, writes: WriteBehind, seed: int) -> None:
    """Blocks are filled, given, reused and dropped in any order."""
    choose, pool = random.Random(seed), Pool(20)
    tier.delay_s = choose.choice((0.0, 0.001))
    for number in range(200):
        block_ids = choose.sample(range(20), 2)
        for block_id in block_ids:
            writes.before_reuse(block_id)
        pool.fill(block_ids, number)
        writes.put_pooled(pool.chunk(number, block_ids))
        if choose.random() < 0.1:
            writes.drop([key_of(choose.randrange(number + 1))])
    assert writes.flush(10)
    stored = [number for number in range(200) if content(tier, number) is not None]
    assert stored
    assert [content(tier, number) for number in stored] == stored
