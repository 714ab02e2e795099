"""`KVStore`: chunks of K/V in tiers. The engine's thread asks and is never kept waiting."""

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
from quire.kvstore.costs import ComputeCosts
from quire.kvstore.counts import StoreCounts, usage_of
from quire.kvstore.guarded_tier import GuardedTier
from quire.kvstore.jobs import LoadedChunk, LoadJob, LookupJob, PoolChunk, StoredChunk
from quire.kvstore.loading.readers import Readers
from quire.kvstore.tiers.base import Tier
from quire.kvstore.tiers.events import TierEvents
from quire.kvstore.write_behind import WriteBehind
from quire.system.at_exit import close_at_exit

MAX_QUEUED_BYTES = 64 << 20
NUM_READ_THREADS = 4
"""More than cores: some wait for a disk while others copy."""
_MOST_FAR_KEYS = 1 << 16
_FAR_KEYS_LIVE_S = 60.0
"""How long an answer of a far tier is believed."""
_CLOSE_S = 5.0
"""How long what is queued may take to be written at the end."""


class KVStore:
    """The tiers, their threads and what is known of them.

    `has`, `wants`, `save` and `load` are called by the engine's thread and neither read nor ask
    any place but memory. What was asked for comes by `take_news`.
    """

    def __init__(
        self,
        shape: ChunkShape,
        tiers: Sequence[Tier],
        *,
        role: KVRole = "kv_both",
        max_queued_bytes: int = MAX_QUEUED_BYTES,
        events: TierEvents | None = None,
    ) -> None:
        """`shape`: of a whole chunk. `tiers`: nearest first; closed with the store. `events`: tells
        what they keep."""
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
        """Chunks that a far tier said it has, and until when that is believed."""
        self._far_lock = threading.Lock()
        self._writes = WriteBehind(self._tiers, self.counts, max_queued_bytes, self._was_written)
        self._readers = Readers(
            self._tiers, self._writes, self.counts, self.shape_of, NUM_READ_THREADS
        )
        self._is_closed = False
        self._pid = os.getpid()
        """Of the process that has the threads."""
        close_at_exit(self, KVStore.close)
        if self._has_far and self.is_read:
            self._readers.connect()

    def shape_of(self, chunk: StoredChunk) -> ChunkShape:
        """The size of a chunk, which may be the tail of a prefix."""
        return ChunkShape(chunk.num_blocks, self.shape.block_bytes)

    def has(self, key: ChunkKey) -> bool:
        """Whether a chunk is in a tier, as far as is known."""
        if self._writes.holds(key) or any(tier.contains([key])[0] for tier in self._local):
            return True
        return self._has_far and self._far.get(key, 0.0) > time.monotonic()

    def wants(self, chunk: StoredChunk) -> bool:
        """Whether the store should be given a chunk."""
        is_known = self._writes.knows(chunk.key) or self.has(chunk.key)
        return self.role != "kv_consumer" and not is_known

    def touch(self, keys: Sequence[ChunkKey]) -> None:
        """A prefix with these chunks, in order of position, was used: its end is dropped before its
        beginning."""
        for tier in self._local:
            tier.contains(keys)

    def save(
        self, chunk: StoredChunk, block_ids: Sequence[int], copy_to: Callable[[memoryview], bool]
    ) -> None:
        """Stores a computed chunk some time later. `block_ids`: of the pool, in which it is.
        `copy_to` copies its K/V, on another thread, before `before_reuse` returns for one of them;
        False: that failed."""
        self._writes.put_pooled(PoolChunk(chunk.key, self.shape_of(chunk), block_ids, copy_to))

    def before_reuse(self, block_id: int) -> None:
        """A block of the pool is about to get other contents. What waits in it to be stored is
        copied, or dropped if too much is queued."""
        self._writes.before_reuse(block_id)

    def leave_pool(self) -> None:
        """The same for all blocks."""
        self._writes.leave_pool()

    def is_worth_loading(self, chunks: Sequence[StoredChunk], compute_s: float) -> bool:
        """Whether loading these is expected to be quicker than computing, which takes so long. The
        nearest tier is asked that has the first of them."""
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
        """Reads chunks and copies them into the pool; each of them is a piece of news."""
        self._readers.load(job)

    def prepare(self) -> None:
        """Makes the memory ready that chunks are read into."""
        self._readers.prepare(self.shape.num_bytes)

    def pace_loads(self, seconds: float | None) -> None:
        """So much processor time loads may take until they are told again; None: any."""
        self._readers.pace.grant(seconds)

    @property
    def is_read(self) -> bool:
        """Whether anything is loaded from it."""
        return self.role != "kv_producer"

    @property
    def must_look_up(self) -> bool:
        """Whether tiers have to be asked what they have before `has` knows it."""
        return self._has_far and self.is_read

    def look_up(self, job: LookupJob) -> None:
        """Asks far tiers, all of them for what is awaited; the job itself is the news."""
        keys = [key for chunk in (*job.wholes, *job.tails) for key in chunk]
        job.found = {key for key in keys if self.has(key)}
        self._readers.look_up(job)

    def take_news(self, timeout_s: float = 0.0) -> LoadedChunk | LookupJob | None:
        """The next piece of news, which the caller waits for at most so long."""
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
        """Drops chunks whose K/V may be invalid."""
        with self._far_lock:
            for key in keys:
                self._far.pop(key, None)
        self._writes.drop(keys)
        self._readers.delete(keys)

    def clear(self, folder: str | None = None) -> int:
        """Drops what is queued, and every chunk of local tiers some time later, or those of one
        `ChunkKey.folder`. How many these have."""
        self._writes.clear(folder)
        num_chunks = sum(tier.tier.num_chunks(folder) for tier in self._local)
        self._readers.clear([tier.tier for tier in self._local], folder)
        return num_chunks

    def pin(self, key: ChunkKey, *, is_pinned: bool) -> bool:
        """Keeps a chunk in local tiers, or lets it go again. Whether one has it."""
        found = [tier.tier for tier in self._local if tier.contains([key])[0]]
        for tier in found:
            tier.pin(key) if is_pinned else tier.unpin(key)
        return bool(found)

    def stats(self) -> dict[str, Any]:
        """What it holds and what happened."""
        return {
            "chunk_blocks": self.chunk_blocks,
            "queued_bytes": self._writes.num_queued_bytes,
            "tiers": usage_of([tier.tier for tier in self._tiers]),
            "counts": self.counts.as_dict(),
        }

    def usage(self) -> dict[str, tuple[int, int]]:
        """Chunks and bytes of each tier that counts them."""
        found = {tier.name: tier.tier.usage() for tier in self._local}
        return {name: (usage.num_chunks, usage.num_bytes) for name, usage in found.items()}

    def flush(self, timeout_s: float = _CLOSE_S) -> bool:
        """Waits until all that was given is stored. False: it took too long."""
        return self._writes.flush(timeout_s)

    def close(self) -> None:
        """Writes what is queued and closes the tiers. Idempotent. Does nothing in a forked child,
        which has none of the threads."""
        if self._is_closed or self._pid != os.getpid():
            return
        self._is_closed = True
        self._readers.close(_CLOSE_S)
        self._writes.close(_CLOSE_S)
        self._close_rest()

    def abandon(self) -> None:
        """The same without waiting for anything, for an owner that is gone: the store's threads do
        it. May be called by the garbage collector, on any thread."""
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
        """That far tiers have these. Any thread."""
        until = time.monotonic() + _FAR_KEYS_LIVE_S
        with self._far_lock:
            for key in keys:
                self._far[key] = until
                self._far.move_to_end(key)
            while len(self._far) > _MOST_FAR_KEYS:
                self._far.popitem(last=False)
