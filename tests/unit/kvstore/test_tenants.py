"""What a KV store keeps of one tenant: a bound of its own, and clearing it alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from kv_layouts import layout_of

from quire.config.records import CacheConfig
from quire.kvcache import KVCacheManager
from quire.kvstore.chunks import ChunkKey, ChunkShape
from quire.kvstore.jobs import StoredChunk
from quire.kvstore.store import KVStore
from quire.kvstore.tiers.base import Tier
from quire.kvstore.tiers.disk import DiskTier
from quire.kvstore.tiers.memory import MemoryTier
from quire.protocol import CacheScope
from quire.scheduler.stored_kv.commands import StoreCommands

SHAPE = ChunkShape(2, 500)
CHUNK_BYTES = 4096 + SHAPE.num_bytes
MAKERS: dict[str, Callable[[Path], Tier]] = {
    "memory": lambda _: MemoryTier(20 * CHUNK_BYTES, folder_bytes=4 * CHUNK_BYTES),
    "disk": lambda path: DiskTier(path, 20 * CHUNK_BYTES, folder_bytes=4 * CHUNK_BYTES),
}


@pytest.fixture
def kv() -> KVCacheManager:
    return KVCacheManager(CacheConfig(4, 8, "float32", True, 1, layout_of(None)), 100)


def chunks_of(kv: KVCacheManager, salt: str | None, count: int) -> list[StoredChunk]:
    blocks = kv.open(CacheScope(salt))
    keys = kv.keys_of(blocks, list(range(8 * count)), 2 * count)
    return [StoredChunk(ChunkKey(blocks.namespace, key, 0), 2) for key in keys[1::2]]


@pytest.mark.parametrize("name", MAKERS)
def test_a_bound_for_each_tenant(name: str, tmp_path: Path, kv: KVCacheManager) -> None:
    store = KVStore(SHAPE, [MAKERS[name](tmp_path)])
    few = chunks_of(kv, "few", 3)
    many = [one for salt in ("many", "many/a", "many/b") for one in chunks_of(kv, salt, 6)]
    assert len({one.key.digest for one in many}) == 18
    for chunk in few + many:
        store.save(chunk, [0], lambda _: True)
        assert store.flush()
    assert all(store.has(one.key) for one in few)
    assert [store.has(one.key) for one in many] == [False] * 14 + [True] * 4
    commands = StoreCommands(kv, store)
    assert commands.clear("few/whatever") == 3
    store._readers.close(5)
    assert not any(store.has(one.key) for one in few)
    assert store.has(many[-1].key)
    store.close()


def test_all_of_it(kv: KVCacheManager, tmp_path: Path) -> None:
    store = KVStore(SHAPE, [make(tmp_path) for make in MAKERS.values()])
    for chunk in chunks_of(kv, "a", 2) + chunks_of(kv, None, 1):
        store.save(chunk, [0], lambda _: True)
    assert store.flush()
    assert StoreCommands(kv, store).clear() == 6
    store._readers.close(5)
    assert store.usage() == {"memory": (0, 0), "disk": (0, 0)}
    store.close()
