"""`MemoryTier`: chunks in the memory of this process, with LRU eviction."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from quire.kvstore.chunks import ChunkKey
from quire.kvstore.eviction import ByteLru, Entry
from quire.kvstore.tiers.base import Buffer, Tier, TierError, TierUsage, TierWatcher
from quire.kvstore.tiers.direct_io import page_memory

_LARGE_BYTES = 4 << 20
"""Chunks from this size on have their own memory mapping. A process can have only 65,530 mappings,
so smaller chunks cannot."""


class MemoryTier(Tier):
    """Holds a copy of each chunk that is written."""

    name = "memory"
    is_local = True

    def __init__(
        self, max_bytes: int, ttl_s: float | None = None, folder_bytes: int | None = None
    ) -> None:
        """`ttl_s`: chunks that were not used for this time are dropped. `folder_bytes`: limit per
        folder."""
        self._index = ByteLru(max_bytes, folder_bytes=folder_bytes, ttl_s=ttl_s)
        self._chunks: dict[Entry, Buffer] = {}
        self._tell: TierWatcher | None = None
        self._is_closed = False
        self._lock = threading.Lock()

    def contains(self, keys: Sequence[ChunkKey]) -> list[bool]:
        entries = [_entry(key) for key in keys]
        now_ns = time.time_ns()
        with self._lock:
            self._drop(self._index.drop_expired(now_ns))
            for entry in reversed(entries):
                self._index.touch(entry, now_ns)
            return [entry in self._chunks for entry in entries]

    def read(self, key: ChunkKey, max_bytes: int) -> Buffer | None:
        entry = _entry(key)
        with self._lock:
            chunk = self._chunks.get(entry)
            if chunk is not None and len(chunk) > max_bytes:
                self._index.drop(entry)
                self._drop([entry])
                chunk = None
        return chunk

    def write(self, key: ChunkKey, parts: Sequence[Buffer]) -> None:
        entry = _entry(key)
        if entry in self._chunks:
            return
        chunk = _copy(parts)
        now_ns = time.time_ns()
        with self._lock:
            if self._is_closed:
                raise TierError("the memory tier is closed")
            if entry in self._chunks:
                return
            dropped = self._index.make_room(entry.folder, len(chunk), now_ns)
            if dropped is None:
                raise TierError(f"there is not enough room for {len(chunk)} bytes in memory")
            self._drop(dropped)
            self._index.put(entry, len(chunk), now_ns)
            self._chunks[entry] = chunk
            if self._tell is not None:
                self._tell([entry.name], True)

    def delete(self, key: ChunkKey) -> None:
        with self._lock:
            self._index.drop(_entry(key))
            self._drop([_entry(key)])

    def pin(self, key: ChunkKey) -> None:
        with self._lock:
            self._index.pin(_entry(key))

    def unpin(self, key: ChunkKey) -> None:
        with self._lock:
            self._index.unpin(_entry(key), time.time_ns())

    def watch(self, tell: TierWatcher) -> None:
        with self._lock:
            self._tell = tell
            tell([entry.name for entry in self._chunks], True)

    def num_chunks(self, folder: str | None = None) -> int:
        with self._lock:
            return len(self._index.in_folder(folder))

    def clear(self, folder: str | None = None) -> None:
        with self._lock:
            self._index.unpin_all(folder, time.time_ns())
            entries = self._index.in_folder(folder)
            for entry in entries:
                self._index.drop(entry)
            self._drop(entries)

    def usage(self) -> TierUsage:
        with self._lock:
            return TierUsage(len(self._index), self._index.num_bytes, self._index.max_bytes)

    def bytes_by_folder(self) -> dict[str, int]:
        """Return the bytes of each model and tenant."""
        with self._lock:
            return self._index.bytes_by_folder()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            for entry in list(self._chunks):
                self._index.drop(entry)
            self._chunks.clear()

    def _drop(self, entries: Sequence[Entry]) -> None:
        gone = [entry for entry in entries if self._chunks.pop(entry, None) is not None]
        if self._tell is not None and gone:
            self._tell([entry.name for entry in gone], False)


def _copy(parts: Sequence[Buffer]) -> Buffer:
    """Return a copy of a chunk. Large chunks use huge pages, because allocating small pages takes
    longer than filling them."""
    num_bytes = sum(map(len, parts))
    if num_bytes < _LARGE_BYTES:
        return b"".join(parts)
    chunk, end = page_memory(num_bytes), 0
    for part in parts:
        chunk[end : end + len(part)] = part
        end += len(part)
    return chunk


def _entry(key: ChunkKey) -> Entry:
    return Entry(key.folder, key.name)
