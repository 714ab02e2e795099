"""`KVStore`: chunks of K/V in tiers. Its calls never block the engine's thread."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from quire.config.kv_cache import KVRole
from quire.kvstore.chunks import ChunkKey, ChunkShape
from quire.kvstore.costs import ComputeCosts, GuardedTier, StoreCounts
from quire.kvstore.jobs import LoadedChunk, LoadJob, LookupJob, PoolChunk, StoredChunk
from quire.kvstore.readers import Readers
from quire.kvstore.tiers.base import Tier, usage_of
from quire.kvstore.tiers.events import TierEvents
from quire.kvstore.write_behind import WriteBehind
from quire.system.at_exit import close_at_exit

MAX_QUEUED_BYTES = 64 << 20
NUM_READ_THREADS = 4
"""More threads than cores: some wait for a disk while others copy."""
_MOST_FAR_KEYS = 1 << 16
_FAR_KEYS_LIVE_S = 60.0
"""Seconds for which the answer of a far tier is considered valid."""
_CLOSE_S = 5.0
"""Seconds that `close` waits for queued chunks to be written."""


class KVStore:
    """The tiers, their threads and the known contents.

    The engine's thread calls `has`, `wants`, `save` and `load`, which access memory only. Results
    of loads and lookups are returned by `take_news`.
    """

    def __init__(
        self,
        shape: ChunkShape,
        tiers: Sequence[Tier],
        *,
        role: KVRole = "kv_both",
        events: TierEvents | None = None,
    ) -> None:
        """`shape`: size of a whole chunk. `tiers`: nearest first; closed with the store. `events`:
        publishes which chunks the tiers store and drop."""
        self.shape = shape
        self.chunk_blocks = shape.num_blocks
        self.role = role
        self.counts = StoreCounts()
        self.compute = ComputeCosts()
        self._tiers = [
            GuardedTier(tier, self.counts, None if events is None else events.watcher(tier))
            for tier in tiers
        ]
        self._local = [tier for tier in self._tiers if tier.tier.is_local]
        self._has_far = len(self._local) < len(self._tiers)
        self._far: OrderedDict[ChunkKey, float] = OrderedDict()
        """Chunks that a far tier reported, and the time until which the answer is valid."""
        self._far_lock = threading.Lock()
        self._writes = WriteBehind(self._tiers, self.counts, MAX_QUEUED_BYTES, self._was_written)
        self._readers = Readers(
            self._tiers, self._writes, self.counts, self.shape_of, NUM_READ_THREADS
        )
        self._is_closed = False
        self._pid = os.getpid()
        """Process that owns the threads."""
        close_at_exit(self, KVStore.close)
        if self._has_far and self.is_read:
            self._readers.connect()

    def shape_of(self, chunk: StoredChunk) -> ChunkShape:
        """The size of a chunk, which may be the tail of a prefix."""
        return ChunkShape(chunk.num_blocks, self.shape.block_bytes)

    def has(self, key: ChunkKey) -> bool:
        """Whether a chunk is in a tier, according to local information."""
        if self._writes.holds(key) or any(tier.contains([key])[0] for tier in self._local):
            return True
        return self._has_far and self._far.get(key, 0.0) > time.monotonic()

    def wants(self, chunk: StoredChunk) -> bool:
        """Whether `save` should be called for a chunk."""
        is_known = self._writes.knows(chunk.key) or self.has(chunk.key)
        return self.role != "kv_consumer" and not is_known

    def touch(self, keys: Sequence[ChunkKey]) -> None:
        """Record the use of a prefix with these chunks, in order of position. Its later chunks are
        evicted before its earlier ones."""
        for tier in self._local:
            tier.contains(keys)

    def save(
        self, chunk: StoredChunk, block_ids: Sequence[int], copy_to: Callable[[memoryview], bool]
    ) -> None:
        """Store a computed chunk later. `block_ids`: the blocks of the pool that hold it. `copy_to`
        copies its K/V on another thread, before `before_reuse` returns for one of these blocks; it
        returns False if the copy failed."""
        self._writes.put_pooled(PoolChunk(chunk.key, self.shape_of(chunk), block_ids, copy_to))

    def before_reuse(self, block_id: int) -> None:
        """Must be called before a block of the pool gets other contents. Chunks in it that wait to
        be stored are copied, or dropped if the queue is full."""
        self._writes.before_reuse(block_id)

    def leave_pool(self) -> None:
        """Do the same as `before_reuse` for all blocks."""
        self._writes.leave_pool()

    def is_worth_loading(self, chunks: Sequence[StoredChunk], compute_s: float) -> bool:
        """Whether loading these chunks is expected to be faster than computing them in `compute_s`.
        The estimate is that of the nearest tier that has the first chunk."""
        for tier in self._tiers:
            if not tier.tier.is_local or tier.contains([chunks[0].key])[0]:
                num_bytes = sum(self.shape_of(chunk).num_bytes for chunk in chunks)
                num_threads = min(len(chunks), NUM_READ_THREADS)
                if tier.costs.seconds(num_bytes) <= compute_s * num_threads:
                    return True
                tier.costs.left_alone()
                return False
        return True

    def load(self, job: LoadJob) -> None:
        """Read chunks and copy them into the pool. `take_news` returns one result per chunk."""
        self._readers.load(job)

    def prepare(self) -> None:
        """Allocate the memory into which chunks are read."""
        self._readers.prepare(self.shape.num_bytes)

    def pace_loads(self, seconds: float | None) -> None:
        """Grant loads this much processor time until the next call; None: unlimited."""
        self._readers.pace.grant(seconds)

    @property
    def is_read(self) -> bool:
        """Whether this role loads chunks."""
        return self.role != "kv_producer"

    @property
    def must_look_up(self) -> bool:
        """Whether far tiers must be queried before `has` knows their chunks."""
        return self._has_far and self.is_read

    def look_up(self, job: LookupJob) -> None:
        """Query far tiers; all tiers for awaited chunks. `take_news` returns the job itself."""
        keys = [key for chunk in (*job.wholes, *job.tails) for key in chunk]
        job.found = {key for key in keys if self.has(key)}
        self._readers.look_up(job)

    def take_news(self, timeout_s: float = 0.0) -> LoadedChunk | LookupJob | None:
        """Return the next result; wait for it at most `timeout_s`."""
        try:
            news = self._readers.news.get(timeout=timeout_s) if timeout_s else self._next()
        except queue.Empty:
            return None
        if isinstance(news, LookupJob):
            self._remember(news.found)
        return news

    def _next(self) -> LoadedChunk | LookupJob:
        return self._readers.news.get_nowait()

    def forget(self, keys: Sequence[ChunkKey]) -> None:
        """Delete chunks whose K/V may be invalid."""
        with self._far_lock:
            for key in keys:
                self._far.pop(key, None)
        self._writes.drop(keys)
        self._readers.delete(keys)

    def clear(self, folder: str | None = None) -> int:
        """Drop queued chunks, and later all chunks of local tiers, or only those of one
        `ChunkKey.folder`. Returns the number of chunks in the local tiers."""
        self._writes.clear(folder)
        num_chunks = sum(tier.tier.num_chunks(folder) for tier in self._local)
        self._readers.clear([tier.tier for tier in self._local], folder)
        return num_chunks

    def pin(self, key: ChunkKey, *, is_pinned: bool) -> bool:
        """Pin or unpin a chunk in local tiers. Returns whether a local tier has it."""
        found = [tier.tier for tier in self._local if tier.contains([key])[0]]
        for tier in found:
            tier.pin(key) if is_pinned else tier.unpin(key)
        return bool(found)

    def stats(self) -> dict[str, Any]:
        """Return the usage of the tiers and the counters."""
        return {
            "chunk_blocks": self.chunk_blocks,
            "queued_bytes": self._writes.num_queued_bytes,
            "tiers": usage_of([tier.tier for tier in self._tiers]),
            "counts": self.counts.as_dict(),
        }

    def usage(self) -> dict[str, tuple[int, int]]:
        """Return the chunks and bytes of each local tier."""
        found = {tier.name: tier.tier.usage() for tier in self._local}
        return {name: (usage.num_chunks, usage.num_bytes) for name, usage in found.items()}

    def flush(self, timeout_s: float = _CLOSE_S) -> bool:
        """Wait until all saved chunks are stored. False: the timeout passed."""
        return self._writes.flush(timeout_s)

    def close(self) -> None:
        """Write queued chunks and close the tiers. Idempotent. Does nothing in a forked child,
        which does not have the threads."""
        if self._is_closed or self._pid != os.getpid():
            return
        self._is_closed = True
        self._readers.close(_CLOSE_S)
        self._writes.close(_CLOSE_S)
        self._close_rest()

    def abandon(self) -> None:
        """Close without waiting, when the owner is gone: the store's threads finish the work. The
        garbage collector may call this on any thread."""
        if self._is_closed or self._pid != os.getpid():
            return
        self._is_closed = True
        self._readers.stop()
        self._writes.stop(_CLOSE_S, self._close_rest)

    def _close_rest(self) -> None:
        self._readers.close(_CLOSE_S)
        for tier in self._tiers:
            tier.tier.close()

    def _was_written(self, key: ChunkKey) -> None:
        if self._has_far:
            self._remember([key])

    def _remember(self, keys: Sequence[ChunkKey] | set[ChunkKey]) -> None:
        """Note that far tiers have these chunks. Any thread."""
        until = time.monotonic() + _FAR_KEYS_LIVE_S
        with self._far_lock:
            for key in keys:
                self._far[key] = until
                self._far.move_to_end(key)
            while len(self._far) > _MOST_FAR_KEYS:
                self._far.popitem(last=False)
