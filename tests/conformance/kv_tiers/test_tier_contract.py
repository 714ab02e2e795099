"""What `Tier` promises, of every tier."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from quire.kvstore.chunk_file import decode, encode
from quire.kvstore.chunks import ChunkKey, ChunkShape
from quire.kvstore.tiers.base import Tier, TierError

SHAPE = ChunkShape(num_blocks=3, block_bytes=700)
MOST = 1 << 24


def key_of(number: int, group: int = 0, folder: int = 7) -> ChunkKey:
    return ChunkKey(bytes([folder]) * 32, number.to_bytes(32, "big"), group)


def data_of(number: int, num_bytes: int = SHAPE.num_bytes) -> bytes:
    return random.Random(number).randbytes(num_bytes)


def test_an_empty_one_has_nothing(tier: Tier) -> None:
    assert tier.contains([]) == []
    assert tier.contains([key_of(1), key_of(2)]) == [False, False]
    assert tier.read(key_of(1), MOST) is None
    tier.delete(key_of(1))
    assert (tier.usage().num_chunks, tier.usage().num_bytes) == (0, 0)


def test_what_was_written_is_read(tier: Tier) -> None:
    parts = encode(key_of(1), SHAPE, data_of(1))
    tier.write(key_of(1), parts)
    assert tier.contains([key_of(2), key_of(1), key_of(1)]) == [False, True, True]
    found = tier.read(key_of(1), MOST)
    assert found is not None
    assert decode(found, key_of(1), SHAPE) == data_of(1)
    assert tier.read(key_of(2), MOST) is None


def test_group_folder_and_digest_tell_chunks_apart(tier: Tier) -> None:
    keys = [key_of(1, 0, 7), key_of(1, 1, 7), key_of(1, 0, 8), key_of(256, 0, 7)]
    for number, key in enumerate(keys):
        tier.write(key, [data_of(number)])
    for number, key in enumerate(keys):
        assert bytes(tier.read(key, MOST) or b"") == data_of(number)


@pytest.mark.parametrize("num_bytes", [1, 4095, 4096, 4097, 1_000_003, 8 << 20])
def test_all_sizes(tier: Tier, num_bytes: int) -> None:
    data = bytearray(data_of(num_bytes, num_bytes))
    cut = num_bytes // 3
    tier.write(key_of(1), [bytes(data[:cut]), memoryview(data)[cut:-1], data[-1:], b""])
    data_before = bytes(data)
    data[:] = bytes(num_bytes)
    assert bytes(tier.read(key_of(1), num_bytes) or b"") == data_before


def test_one_that_is_longer_is_dropped(tier: Tier) -> None:
    tier.write(key_of(1), [data_of(1)])
    tier.write(key_of(2), [data_of(2)])
    assert tier.read(key_of(1), SHAPE.num_bytes - 1) is None
    assert tier.contains([key_of(1), key_of(2)]) == [False, True]
    assert tier.read(key_of(1), MOST) is None


def test_one_that_is_there_stays(tier: Tier) -> None:
    tier.write(key_of(1), [data_of(1)])
    tier.write(key_of(1), [data_of(2)])
    assert bytes(tier.read(key_of(1), MOST) or b"") == data_of(1)


def test_deleted_means_gone(tier: Tier) -> None:
    for number in (1, 2):
        tier.write(key_of(number), [data_of(number)])
    tier.delete(key_of(1))
    tier.delete(key_of(1))
    assert tier.contains([key_of(1), key_of(2)]) == [False, True]
    assert tier.read(key_of(1), MOST) is None
    tier.write(key_of(1), [data_of(3)])
    assert bytes(tier.read(key_of(1), MOST) or b"") == data_of(3)


def test_usage_is_what_is_held_or_nothing_that_is_known(tier: Tier) -> None:
    for number in range(3):
        tier.write(key_of(number), [data_of(number)])
    tier.delete(key_of(0))
    usage = tier.usage()
    if tier.is_local:
        assert (usage.num_chunks, usage.num_bytes) == (2, 2 * SHAPE.num_bytes)
        assert usage.max_bytes is not None
    else:
        assert usage.max_bytes is None


def test_many_keys_are_asked_for_at_once(tier: Tier) -> None:
    for number in range(0, 300, 7):
        tier.write(key_of(number), [b"x" * 10])
    found = tier.contains([key_of(number) for number in range(300)])
    assert found == [number % 7 == 0 for number in range(300)]


@pytest.mark.sweep(3)
def test_several_threads(tier: Tier) -> None:
    """Four threads write, read and delete the same chunks: each is whole or not there."""
    chunks = [b"".join(encode(key_of(n), SHAPE, data_of(n))) for n in range(8)]
    begin = threading.Barrier(4)

    def work(seed: int) -> int:
        rng, hits = random.Random(seed), 0
        begin.wait()
        for _ in range(60):
            number = rng.randrange(8)
            match rng.randrange(5):
                case 0 | 1:
                    tier.write(key_of(number), [chunks[number][:4096], chunks[number][4096:]])
                case 2:
                    tier.delete(key_of(number))
                case 3:
                    assert len(tier.contains([key_of(n) for n in range(8)])) == 8
                case _:
                    found = tier.read(key_of(number), MOST)
                    hits += found is not None
                    assert found is None or bytes(found) == chunks[number]
        return hits

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(work, range(4))) > 0
    held = [bytes(chunk) for n in range(8) if (chunk := tier.read(key_of(n), MOST)) is not None]
    if tier.is_local:
        assert tier.usage().num_chunks == len(held)
        assert tier.usage().num_bytes == sum(map(len, held))


def test_closing_twice_and_using_it_afterwards(tier: Tier) -> None:
    tier.write(key_of(1), [data_of(1)])
    tier.close()
    tier.close()
    for use in (
        lambda: tier.contains([key_of(1)]),
        lambda: tier.read(key_of(1), MOST),
        lambda: tier.delete(key_of(1)),
    ):
        with suppress(TierError):
            use()
    with pytest.raises(TierError, match="closed"):
        tier.write(key_of(2), [data_of(2)])
    tier.usage()
