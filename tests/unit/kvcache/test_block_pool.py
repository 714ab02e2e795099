"""BlockPool: order of reuse, counts, keys, and books that notice tampering."""

from __future__ import annotations

import time

import pytest

from quire.errors import IntegrityError
from quire.kvcache import BlockPool
from quire.kvcache.integrity import check_blocks


def test_fresh_blocks_come_in_order_and_run_out() -> None:
    pool = BlockPool(3)
    assert pool.allocate(2) == [0, 1]
    assert (pool.num_free, pool.num_held) == (1, 2)
    assert pool.allocate(1) == [2]
    with pytest.raises(IntegrityError, match="1 blocks asked for, 0 free"):
        pool.allocate(1)


def test_empty_blocks_are_reused_before_fresh_ones() -> None:
    pool = BlockPool(10)
    pool.release(reversed(pool.allocate(3)))
    assert pool.allocate(4) == [0, 1, 2, 3]


def test_cached_blocks_are_evicted_last_and_least_recently_freed_first() -> None:
    pool = BlockPool(4)
    for block, key in zip(pool.allocate(3), (b"a", b"b", b"c"), strict=True):
        pool.register(block, key)
    pool.release([1])
    pool.release([2])
    pool.release([0])
    assert pool.allocate(1) == [3]
    assert pool.allocate(1) == [1]
    assert pool.lookup(b"b") is None
    assert pool.lookup(b"c") == 2
    check_blocks(pool, [[3], [1]])


def test_the_tail_of_a_request_is_evicted_before_its_beginning() -> None:
    pool = BlockPool(3)
    table = pool.allocate(3)
    for block in table:
        pool.register(block, bytes([block]))
    pool.release(reversed(table))
    assert pool.allocate(2) == [2, 1]
    assert pool.lookup(bytes([0])) == 0


def test_a_hit_leaves_the_queue_from_the_middle() -> None:
    pool = BlockPool(3)
    for block in pool.allocate(3):
        pool.register(block, bytes([block]))
    pool.release([0, 1, 2])
    pool.hold([1])
    assert pool.num_free == 2
    assert pool.allocate(2) == [0, 2]
    check_blocks(pool, [[1], [0, 2]])


def test_a_shared_block_stays_until_its_last_holder_leaves() -> None:
    pool = BlockPool(2)
    pool.allocate(1)
    pool.register(0, b"k")
    pool.hold([0])
    assert pool.states() == "sf"
    pool.release([0])
    assert pool.states() == "uf"
    pool.release([0])
    assert pool.states() == "cf"
    with pytest.raises(IntegrityError, match="released more often"):
        pool.release([0])


def test_the_first_block_under_a_key_keeps_it() -> None:
    pool = BlockPool(2)
    pool.allocate(2)
    pool.register(0, b"k")
    pool.register(1, b"k")
    assert pool.lookup(b"k") == 0
    pool.release([0, 1])
    assert pool.states() == "cf"


def test_forgetting_needs_an_idle_pool() -> None:
    pool = BlockPool(2)
    pool.allocate(1)
    pool.register(0, b"k")
    assert pool.forget_cached() is False
    assert pool.lookup(b"k") == 0
    pool.release([0])
    assert pool.forget_cached() is True
    assert pool.lookup(b"k") is None
    assert pool.num_free == 2
    check_blocks(pool, [])


def test_a_large_pool_costs_nothing_until_it_is_used() -> None:
    begin = time.perf_counter()
    pool = BlockPool(10**9)
    pool.allocate(10)
    assert time.perf_counter() - begin < 2  # seconds; making all of its blocks would take minutes


@pytest.mark.parametrize(
    "tamper",
    [
        lambda pool: pool._ref_counts.__setitem__(0, 2),
        lambda pool: pool._empty.append(0),
        lambda pool: pool._cached.__setitem__(0, None),
        lambda pool: pool._by_key.__setitem__(b"x", 0),
        lambda pool: pool._keys.__setitem__(0, b"x"),
    ],
)
def test_integrity_check_notices(tamper: object) -> None:
    pool = BlockPool(4)
    table = pool.allocate(2)
    check_blocks(pool, [table])
    tamper(pool)  # type: ignore[operator]
    with pytest.raises(IntegrityError):
        check_blocks(pool, [table])


def test_integrity_check_notices_a_leaked_table() -> None:
    pool = BlockPool(4)
    pool.allocate(2)
    with pytest.raises(IntegrityError, match=r"disagree for blocks \[0, 1\]"):
        check_blocks(pool, [])


def test_a_forgotten_block_is_not_found_whoever_holds_it() -> None:
    pool = BlockPool(4)
    for block, key in zip(pool.allocate(3), (b"a", b"b", b"c"), strict=True):
        pool.register(block, key)
    pool.release([1])
    for key in (b"a", b"b", b"unknown"):
        pool.forget(key)
    assert [pool.lookup(key) for key in (b"a", b"b", b"c")] == [None, None, 2]
    check_blocks(pool, [[0, 2]])
    pool.register(0, b"a")  # the holder may compute it again
    assert pool.lookup(b"a") == 0
    pool.release([0, 2])
    assert pool.allocate(4) == [1, 3, 0, 2]  # what is empty before what is cached
    check_blocks(pool, [[0, 1, 2, 3]])


def test_cached_blocks_are_reused_before_fresh_ones_once_there_are_many() -> None:
    pool = BlockPool(10, most_cached=2)
    for number in range(4):
        [block] = pool.allocate(1)
        assert pool.register(block, (0, bytes([number])))
        pool.release([block])
    assert pool.num_used == 3  # the fourth took the block of the first
    assert pool.lookup((0, bytes([0]))) is None
    assert pool.lookup((0, bytes([3]))) is not None
    assert len(set(pool.allocate(10))) == 10
