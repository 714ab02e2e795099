"""A tier of a KV store in a dictionary, near or far, that can be told to fail."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

from quire.kvstore.chunks import ChunkKey
from quire.kvstore.tiers.base import Buffer, Tier, TierError, TierUsage


class DictTier(Tier):
    """Whatever it does, it does for its owner, who may change its attributes at any time."""

    def __init__(self, name: str = "dict", *, is_local: bool = True) -> None:
        self.name = name
        self.is_local = is_local
        self.chunks: dict[ChunkKey, bytes] = {}
        self.num_reads = 0
        self.num_writes = 0
        self.failing = 0.0
        """Share of reads, writes and lookups that fail."""
        self.damaged = 0.0
        """Share of reads that give other bytes than were written."""
        self.lost = 0.0
        """Share of reads of chunks that are there and are not found."""
        self.delay_s = 0.0
        self._random = random.Random(1)

    def _begin(self, what: str) -> None:
        if self.delay_s:
            time.sleep(self.delay_s)
        if self._random.random() < self.failing:
            raise TierError(f"{what} fails")

    def contains(self, keys: Sequence[ChunkKey]) -> list[bool]:
        if not self.is_local:
            self._begin("lookup")
        return [key in self.chunks for key in keys]

    def read(self, key: ChunkKey, max_bytes: int) -> Buffer | None:
        self._begin("read")
        self.num_reads += 1
        data = self.chunks.get(key)
        if data is None or len(data) > max_bytes or self._random.random() < self.lost:
            return None
        if self._random.random() < self.damaged:
            place = self._random.randrange(len(data))
            return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        return data

    def write(self, key: ChunkKey, parts: Sequence[Buffer]) -> None:
        self._begin("write")
        self.num_writes += 1
        self.chunks.setdefault(key, b"".join(parts))

    def delete(self, key: ChunkKey) -> None:
        self.chunks.pop(key, None)

    def usage(self) -> TierUsage:
        return TierUsage(len(self.chunks), sum(map(len, [*self.chunks.values()])), None)

    def close(self) -> None:
        pass
