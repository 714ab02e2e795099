"""`PoolChunks`: chunks that are to be written, and whose K/V is still in the block pool."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from quire.kvstore.chunks import ChunkKey, ChunkShape


@dataclass(frozen=True, eq=False, slots=True)
class PoolChunk:
    """A chunk in blocks that do not change until they are reused."""

    key: ChunkKey
    shape: ChunkShape
    block_ids: Sequence[int]
    copy_to: Callable[[memoryview], bool]
    """Copies its K/V out of the pool, on any thread. False: that failed."""


class PoolChunks:
    """In order of arrival. Not safe for threads."""

    def __init__(self) -> None:
        self._chunks: OrderedDict[ChunkKey, PoolChunk] = OrderedDict()
        self._of_block: dict[int, list[PoolChunk]] = {}

    def __contains__(self, key: ChunkKey) -> bool:
        return key in self._chunks

    def __len__(self) -> int:
        return len(self._chunks)

    def first(self) -> PoolChunk:
        """The one that has waited for longest."""
        return next(iter(self._chunks.values()))

    def get(self, key: ChunkKey) -> PoolChunk | None:
        """The chunk of that name."""
        return self._chunks.get(key)

    def chunks(self) -> list[PoolChunk]:
        """In order of arrival."""
        return [*self._chunks.values()]

    def in_block(self, block_id: int) -> Sequence[PoolChunk]:
        """The chunks that have a block."""
        return self._of_block.get(block_id, ())

    def add(self, chunk: PoolChunk) -> None:
        """Behind all others. None has its key."""
        self._chunks[chunk.key] = chunk
        for block_id in chunk.block_ids:
            self._of_block.setdefault(block_id, []).append(chunk)

    def remove(self, chunk: PoolChunk) -> None:
        """Forgets one that is there."""
        del self._chunks[chunk.key]
        for block_id in chunk.block_ids:
            chunks = self._of_block[block_id]
            chunks.remove(chunk)
            if not chunks:
                del self._of_block[block_id]
