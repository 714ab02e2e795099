"""`Readers`: threads that look for chunks in the tiers, nearest first."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from quire.kvstore.chunk_file import HEADER_BYTES
from quire.kvstore.chunks import ChunkKey, ChunkShape
from quire.kvstore.guarded_tier import GuardedTier
from quire.kvstore.jobs import LoadedChunk, LoadJob, LookupJob, StoredChunk
from quire.kvstore.tiers.base import Tier, TierError
from quire.kvstore.tiers.direct_io import page_memory
from quire.kvstore.write_behind import WriteBehind
from quire.log import get_logger

logger = get_logger(__name__)

_MOST_UNREAD_CHUNKS = 4
"""Chunks that were read and not taken, over all jobs: so many buffers there are for them. To get
memory from the system takes longer than to read a chunk into it."""
_LOOKUP_PIECE = 64
"""Chunks that a far tier is asked for at once."""


class Readers:
    """Owned by the store. News comes by a queue, which the engine's thread empties."""

    def __init__(
        self,
        tiers: Sequence[GuardedTier],
        writes: WriteBehind,
        shape_of: Callable[[StoredChunk], ChunkShape],
        num_threads: int,
    ) -> None:
        self.news: queue.SimpleQueue[LoadedChunk | LookupJob] = queue.SimpleQueue()
        self._tiers = tiers
        self._writes = writes
        self._shape_of = shape_of
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._buffers: queue.SimpleQueue[memoryview] = queue.SimpleQueue()
        """Those that are free; empty ones were never used."""
        for _ in range(_MOST_UNREAD_CHUNKS):
            self._buffers.put(memoryview(b""))
        self._is_closing = False
        self._threads = [
            threading.Thread(target=self._run, name=f"kv-store-read-{i}", daemon=True)
            for i in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    def load(self, job: LoadJob) -> None:
        """Reads the chunks of a job; each gives one piece of news."""
        for index in range(len(job.chunks)):
            self._jobs.put(partial(self._read, job, index))

    def look_up(self, job: LookupJob) -> None:
        """Asks the far tiers, all of them for what is awaited; the job itself is the news."""
        self._jobs.put(partial(self._look_up, job))

    def connect(self) -> None:
        """Asks far tiers for something, so that no request waits for their connections."""
        self._jobs.put(self._connect)

    def delete(self, keys: Sequence[ChunkKey]) -> None:
        """Drops chunks from every tier."""
        self._jobs.put(partial(self._delete, keys))

    def clear(self, tiers: Sequence[Tier], folder: str | None) -> None:
        """Empties tiers, or one folder of them."""
        self._jobs.put(partial(self._clear, tiers, folder))

    def taken(self, loaded: LoadedChunk) -> None:
        """The engine's thread has done with the data of a chunk."""
        if loaded.buffer is not None:
            self._buffers.put(loaded.buffer)

    def close(self, timeout_s: float) -> None:
        """Ends the threads. Idempotent."""
        self._is_closing = True
        for _ in self._threads:
            self._jobs.put(None)
            self._buffers.put(memoryview(b""))
        for thread in self._threads:
            thread.join(timeout_s)

    def _run(self) -> None:
        while not self._is_closing:
            job = self._jobs.get()
            if job is None:
                return
            job()

    def _read(self, load: LoadJob, index: int) -> None:
        """Tells of a chunk in any case: one that cannot be had is a miss."""
        buffer, chunk = self._buffers.get(), load.chunks[index]
        data, tier = None, ""
        try:
            if not load.is_cancelled and time.monotonic() < load.deadline:
                num_bytes = HEADER_BYTES + self._shape_of(chunk).num_bytes
                if len(buffer) < num_bytes:
                    buffer = page_memory(num_bytes)
                data, tier = self._find(chunk, buffer)
        except Exception:
            logger.exception("KV store: chunk %s was not read", chunk.key.name)
        self.news.put(LoadedChunk(load, index, data, tier, buffer))

    def _connect(self) -> None:
        for tier in self._tiers:
            if not tier.tier.is_local:
                tier.find([ChunkKey(bytes(32), bytes(32), 0)])

    def _clear(self, tiers: Sequence[Tier], folder: str | None) -> None:
        for tier in tiers:
            try:
                tier.clear(folder)
            except TierError as error:
                logger.warning("KV store, %s: %s", tier.name, error)

    def _delete(self, keys: Sequence[ChunkKey]) -> None:
        for key in keys:
            for tier in self._tiers:
                tier.delete(key)

    def _find(self, chunk: StoredChunk, buffer: memoryview) -> tuple[memoryview | None, str]:
        """A chunk and its tier."""
        shape = self._shape_of(chunk)
        data = self._writes.get(chunk.key)
        if data is not None and len(data) == shape.num_bytes:
            return data, "queue"
        for tier in self._tiers:
            if tier.tier.is_local and not tier.contains([chunk.key])[0]:
                continue
            data = tier.read(chunk.key, shape, buffer)
            if data is not None:
                if not tier.tier.is_local:  # nearer tiers have it next time
                    self._promote(chunk.key, shape, data)
                return data, tier.name
        return None, ""

    def _promote(self, key: ChunkKey, shape: ChunkShape, data: memoryview) -> None:
        if any(tier.tier.is_local for tier in self._tiers):
            self._writes.put(key, shape, data)

    def _look_up(self, job: LookupJob) -> None:
        try:
            self._ask_far_tiers(job)
        except Exception:
            logger.exception("KV store: no answer to what %s asked", job.request_id)
        self.news.put(job)

    def _ask_far_tiers(self, job: LookupJob) -> None:
        """Asks for whole chunks, up to the first that no tier has, then for what may follow."""
        for start in range(0, len(job.wholes), _LOOKUP_PIECE):
            piece = job.wholes[start : start + _LOOKUP_PIECE]
            self._ask(job, [key for keys in piece for key in keys])
            missing = [not job.found.issuperset(keys) for keys in piece]
            if any(missing):
                self._ask(job, job.tails[start + missing.index(True)])
                return
        self._ask(job, job.tails[-1])

    def _ask(self, job: LookupJob, keys: Sequence[ChunkKey]) -> None:
        unknown = [key for key in keys if key not in job.found]
        for tier in self._tiers:
            is_asked = not tier.tier.is_local or job.awaited
            if unknown and is_asked and time.monotonic() < job.deadline:
                found = tier.find(unknown)
                job.found.update(key for key, there in zip(unknown, found, strict=True) if there)
