"""`StoreCommands`: commands of front ends to the KV store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from quire.kvcache import KVCacheManager, SequenceBlocks
from quire.kvstore.chunks import ChunkKey
from quire.protocol.cache_scope import CacheScope
from quire.scheduler.stored_kv.stored_states import StoredStates

if TYPE_CHECKING:
    from quire.kvstore.store import KVStore


class StoreCommands:
    """Owned by the engine's thread."""

    def __init__(self, kv: KVCacheManager, store: KVStore) -> None:
        self._kv = kv
        self._store = store

    def pin(self, token_ids: Sequence[int], salt: str | None, is_pinned: bool) -> int:
        """Pins or unpins the stored chunks of a prompt, for example of a system prompt. Returns how
        many leading tokens they hold in all layer groups."""
        kv, size = self._kv, self._store.chunk_blocks
        blocks = kv.open(CacheScope(salt))
        num_full = len(token_ids) // kv.block_size
        keys = kv.keys_of(blocks, token_ids, num_full)
        groups = [i for i, group in enumerate(kv.layout.groups) if group.is_by_position]
        self._pin_states(blocks, keys, is_pinned)
        for end in range(size, num_full + 1, size):
            chunks = [ChunkKey(blocks.namespace, keys[end - 1], group) for group in groups]
            if not all(self._store.pin(key, is_pinned=is_pinned) for key in chunks):
                return (end - size) * kv.block_size
        return num_full // size * size * kv.block_size

    def _pin_states(self, blocks: SequenceBlocks, keys: Sequence[bytes], is_pinned: bool) -> None:
        """Pins or unpins what is stored of the states of recurrent layers."""
        if self._kv.snapshots is None:
            return
        states = StoredStates(self._kv, self._store)
        for digest in keys:
            for key in states.keys(blocks.namespace, digest):
                self._store.pin(key, is_pinned=is_pinned)

    def clear(self, salt: str | None = None) -> int:
        """Drops the chunks that local tiers have of one tenant and this model; `salt` None: all
        chunks. Returns how many were dropped."""
        if salt is None:
            return self._store.clear()
        return self._store.clear(ChunkKey(self._kv.open(CacheScope(salt)).namespace, b"", 0).folder)
