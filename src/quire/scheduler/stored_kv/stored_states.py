"""`StoredStates`: the states of recurrent layers in the KV store; and `ChunkPlaces`, where a stored
chunk goes.

A state takes the blocks of a snapshot. It is stored in chunks of at most as many blocks as other
chunks have. The first one has the name of a chunk that ends with the last block before the state,
and the names of the others are made from it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quire.errors import IntegrityError
from quire.kvcache import BlockKey, KVCacheManager, SequenceBlocks
from quire.kvstore.chunks import ChunkKey
from quire.kvstore.jobs import StoredChunk

if TYPE_CHECKING:
    from quire.kvstore.store import KVStore

_SHARE = 8
"""A state that is stored takes at most so many times the bytes of the K/V between it and the one
before it."""


@dataclass(frozen=True, slots=True)
class ChunkPlaces:
    """A chunk, and where its blocks go."""

    chunk: StoredChunk
    end: int
    """The first entry of the block table after the chunk."""
    end_tokens: int
    """Number of tokens up to the end of the chunk."""
    places: list[tuple[int, BlockKey]]
    """For each block that the pool lacks: its index in the chunk, and its key in the pool."""
    num_tokens: int
    """Number of tokens in those blocks."""


class StoredStates:
    """Owned by `ChunkSaves` and by `StoredPrefixes`. One thread."""

    def __init__(self, kv: KVCacheManager, store: KVStore) -> None:
        if kv.snapshots is None:
            raise IntegrityError("this model has no states")
        self.index = kv.snapshots.index
        """Index of the layer group."""
        self._pool = kv.pool
        self._snapshots = kv.snapshots
        self._store = store
        self._block_size = kv.block_size
        group = kv.snapshots.group
        self._num_blocks = group.num_blocks
        self._distance = max(store.chunk_blocks, group.num_blocks // _SHARE)
        """The fewest entries between two stored states of a request."""

    def chunks(self, namespace: bytes, digest: bytes) -> list[StoredChunk]:
        """The chunks of the state after the block with this hash."""
        size = self._store.chunk_blocks
        return [
            StoredChunk(
                ChunkKey(namespace, _name(digest, first), self.index),
                min(size, self._num_blocks - first),
            )
            for first in range(0, self._num_blocks, size)
        ]

    def keys(self, namespace: bytes, digest: bytes) -> list[ChunkKey]:
        """The keys of `chunks`."""
        return [chunk.key for chunk in self.chunks(namespace, digest)]

    def is_stored(self, namespace: bytes, digest: bytes) -> bool:
        """Whether the store has all chunks of a state."""
        return all(self._store.has(key) for key in self.keys(namespace, digest))

    def is_known(self, namespace: bytes, digest: bytes) -> bool:
        """Whether the pool or the store has a state."""
        return bool(self._snapshots.find(digest)) or self.is_stored(namespace, digest)

    def is_wanted(self, blocks: SequenceBlocks, end: int) -> bool:
        """Whether the state after `end` entries should be stored: no other one is stored for a
        while before it."""
        first = end - self._distance
        names = (_name(key, 0) for key in blocks.keys[max(0, first) : end - 1])
        chunks = (ChunkKey(blocks.namespace, name, self.index) for name in names)
        is_near = first < 0 or any(not self._store.wants(StoredChunk(key, 1)) for key in chunks)
        return not is_near

    def places(
        self, namespace: bytes, keys: Sequence[bytes], end: int, num_cached: int
    ) -> list[ChunkPlaces] | None:
        """The chunks to load for the state after `end` entries. None: the store lacks them."""
        digest, found = keys[end - 1], list[ChunkPlaces]()
        in_pool: list[BlockKey] = self._snapshots.keys(digest)
        if self._snapshots.find(digest):
            return found
        first = 0
        for chunk in self.chunks(namespace, digest):
            if not self._store.has(chunk.key):
                return None
            own = in_pool[first : first + chunk.num_blocks]
            places = [(i, key) for i, key in enumerate(own) if self._pool.lookup(key) is None]
            if places:
                num_tokens = 0 if first else (end - num_cached) * self._block_size
                found.append(ChunkPlaces(chunk, end, end * self._block_size, places, num_tokens))
            first += chunk.num_blocks
        return found


def _name(digest: bytes, first: int) -> bytes:
    """The name of the chunk that begins with block `first` of a state."""
    return hashlib.sha256(digest + first.to_bytes(4, "little")).digest() if first else digest
