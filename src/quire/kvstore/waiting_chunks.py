"""`WaitingChunks`: chunks that wait to be written, in the block pool or as copies.

The base of `WriteBehind`, which writes them. The engine's thread asks here at every step.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence

from quire.kvstore.chunks import ChunkKey, ChunkShape
from quire.kvstore.jobs import PoolChunk
from quire.kvstore.tiers.base import Buffer


class WaitingChunks(ABC):
    """Two queues. Safe for threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._queued: OrderedDict[ChunkKey, tuple[Buffer, ChunkShape]] = OrderedDict()
        """Copies, in order of arrival."""
        self._pooled = PoolChunks()
        self._writing: ChunkKey | None = None
        """The chunk that is being written."""

    def holds(self, key: ChunkKey) -> bool:
        """Whether `get` can return this chunk."""
        return key in self._queued

    def knows(self, key: ChunkKey) -> bool:
        """Whether a chunk is queued or being written."""
        return key in self._queued or key in self._pooled or key == self._writing

    def get(self, key: ChunkKey) -> memoryview | None:
        """Return the K/V of a queued copy."""
        entry = self._queued.get(key)
        return None if entry is None else memoryview(entry[0]).cast("B")

    def before_reuse(self, block_id: int) -> None:
        """Must be called before a block of the pool gets other contents. Copies the chunks that
        wait in it."""
        if self._pooled.in_block(block_id):
            with self._changed:
                self._leave_pool([*self._pooled.in_block(block_id)])

    @abstractmethod
    def _leave_pool(self, chunks: Sequence[PoolChunk]) -> None:
        """Copies chunks out of the pool. The caller has the lock."""


class PoolChunks:
    """Chunks that wait in the block pool, in order of arrival. Not safe for threads."""

    def __init__(self) -> None:
        self._chunks: OrderedDict[ChunkKey, PoolChunk] = OrderedDict()
        self._of_block: dict[int, list[PoolChunk]] = {}

    def __contains__(self, key: ChunkKey) -> bool:
        return key in self._chunks

    def __len__(self) -> int:
        return len(self._chunks)

    def first(self) -> PoolChunk:
        """Return the oldest chunk."""
        return next(iter(self._chunks.values()))

    def get(self, key: ChunkKey) -> PoolChunk | None:
        """Return the chunk with this key."""
        return self._chunks.get(key)

    def chunks(self) -> list[PoolChunk]:
        """Return all chunks in order of arrival."""
        return [*self._chunks.values()]

    def in_block(self, block_id: int) -> Sequence[PoolChunk]:
        """Return the chunks that use this block."""
        return self._of_block.get(block_id, ())

    def add(self, chunk: PoolChunk) -> None:
        """Append a chunk, whose key must be new."""
        self._chunks[chunk.key] = chunk
        for block_id in chunk.block_ids:
            self._of_block.setdefault(block_id, []).append(chunk)

    def remove(self, chunk: PoolChunk) -> None:
        """Remove a chunk, which must be present."""
        del self._chunks[chunk.key]
        for block_id in chunk.block_ids:
            chunks = self._of_block[block_id]
            chunks.remove(chunk)
            if not chunks:
                del self._of_block[block_id]
