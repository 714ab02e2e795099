"""TierEvents: whoever follows them knows which chunks the tiers have."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import vllm_kv_events as vllm
from dict_tier import DictTier

from quire.kvstore.chunks import ChunkKey
from quire.kvstore.costs import GuardedTier, StoreCounts
from quire.kvstore.tiers.base import Tier
from quire.kvstore.tiers.disk import DiskTier
from quire.kvstore.tiers.events import TierEvents
from quire.kvstore.tiers.memory import MemoryTier
from quire.protocol.kv_events import KVEvent, KVEventBatch

CHUNK = b"x" * 100
MAKERS: dict[str, Callable[[Path], Tier]] = {
    "memory": lambda _: MemoryTier(550),
    "disk": lambda path: DiskTier(path, 550),
}


def key(number: int) -> ChunkKey:
    return ChunkKey(bytes([number % 2]) * 32, bytes([number]) * 32, number % 3)


class Follower:
    def __init__(self) -> None:
        self.events: list[vllm.BlockStored | vllm.BlockRemoved] = []
        self.found: set[tuple[int | None, object]] = set()

    def __call__(self, events: list[KVEvent]) -> None:
        data = msgspec.msgpack.encode(KVEventBatch(0.0, events))  # type: ignore[arg-type]
        for event in msgspec.msgpack.decode(data, type=vllm.KVEventBatch).events:
            assert isinstance(event, vllm.BlockStored | vllm.BlockRemoved)
            self.events.append(event)
            keys = {(event.group_idx, one) for one in event.block_hashes}
            if isinstance(event, vllm.BlockStored):
                self.found |= keys
            else:
                self.found -= keys


def wanted(tier: Tier, numbers: range) -> set[tuple[int, bytes]]:
    keys = [key(number) for number in numbers]
    there = tier.contains(keys)
    return {(one.group, one.digest) for one, is_there in zip(keys, there, strict=True) if is_there}


@pytest.mark.parametrize("name", MAKERS)
def test_whoever_follows_knows_a_local_tier(name: str, tmp_path: Path) -> None:
    chance, numbers, follower = random.Random(1), range(9), Follower()
    tier = MAKERS[name](tmp_path)
    tier.write(key(0), [CHUNK])
    first = wanted(tier, numbers)
    tier.watch(TierEvents(follower, as_int=False).watcher(tier))
    assert follower.found == first
    for turn in range(200):
        number = chance.choice(numbers)
        if chance.random() < 0.7:
            tier.write(key(number), [CHUNK])
        else:
            tier.delete(key(number))
        if turn == 100:
            tier.clear()
        assert follower.found == wanted(tier, numbers), turn
    assert 0 < len(follower.found) <= 5
    tier.close()


def test_the_fields() -> None:
    follower = Follower()
    events = TierEvents(follower)
    for tier in (MemoryTier(1000), DictTier("redis", is_local=False)):
        guarded = GuardedTier(tier, StoreCounts(), events.watcher(tier))
        assert guarded.write(key(5), [CHUNK])
        guarded.delete(key(5))
    digest = int.from_bytes(bytes([5]) * 8, "big")
    one = {"block_hashes": [digest], "group_idx": 2}
    stored = {"parent_block_hash": None, "token_ids": [], "block_size": 0, "lora_id": None}
    in_memory = {"medium": "CPU", "locality": "LOCAL", "ownership": "memory"}
    in_redis = {"medium": "STORAGE", "locality": "REMOTE", "ownership": "redis"}
    assert follower.events == [
        vllm.BlockStored(**one, **stored, **in_memory, lora_name=None),
        vllm.BlockRemoved(**one, **in_memory),
        vllm.BlockStored(**one, **stored, **in_redis, lora_name=None),
        vllm.BlockRemoved(**one, **in_redis),
    ]


def test_what_other_processes_do(tmp_path: Path) -> None:
    follower = Follower()
    tier, other = DiskTier(tmp_path, 10_000), DiskTier(tmp_path, 10_000)
    tier.watch(TierEvents(follower, as_int=False).watcher(tier))
    other.write(key(1), [CHUNK])
    tier._next_scan = 0.0
    tier._tick()
    assert follower.found == {(1, key(1).digest)}
    other.delete(key(1))
    tier._next_scan = 0.0
    tier._tick()
    assert follower.found == set()
    tier.close()
    other.close()
