"""`WriteBehind`: writes chunks to the tiers in the background."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from quire.kvstore.chunk_file import HEADER_BYTES, encode
from quire.kvstore.chunks import ChunkKey, ChunkShape
from quire.kvstore.costs import GuardedTier, StoreCounts
from quire.kvstore.jobs import PoolChunk
from quire.kvstore.tiers.base import Buffer
from quire.kvstore.tiers.direct_io import page_memory
from quire.kvstore.waiting_chunks import WaitingChunks
from quire.log import get_logger

logger = get_logger(__name__)


class WriteBehind(WaitingChunks):
    """Two queues and a thread that empties them. Safe for threads.

    A computed chunk waits in the block pool, where it takes no extra memory, and is copied when the
    thread gets to it. Chunks that cannot stay where they are wait as copies in a queue with limited
    bytes: chunks from far tiers, and chunks in blocks that are about to be reused. A copy that does
    not fit is dropped and counted. Waiting copies can be read.
    """

    def __init__(
        self,
        tiers: Sequence[GuardedTier],
        counts: StoreCounts,
        max_queued_bytes: int,
        written: Callable[[ChunkKey], None] = lambda _: None,
    ) -> None:
        """`written`: called by the thread for each chunk that was passed to the tiers."""
        super().__init__()
        self._tiers = tiers
        self._counts = counts
        self._max_queued_bytes = max_queued_bytes
        self._num_queued_bytes = 0
        self._written = written
        self._copying: PoolChunk | None = None
        """The pooled chunk that the thread is copying now."""
        self._is_unwanted = False
        """Whether the chunk being written must be deleted afterwards."""
        self._buffer: memoryview | None = None
        """Buffer of the thread for a chunk with its header; page-aligned."""
        self._is_closing = False
        self._drops_at = math.inf
        """`time.monotonic()` after which queued chunks are dropped; set by `stop`."""
        self._at_end: Callable[[], None] = _nothing
        self._thread = threading.Thread(target=self._run, name="kv-store-write", daemon=True)
        self._thread.start()

    def put(self, key: ChunkKey, shape: ChunkShape, data: Buffer) -> bool:
        """Queue a copy, which must not change afterwards. False: the chunk is already queued, or
        was dropped."""
        with self._changed:
            if self.knows(key) or not self._has_room(shape.num_bytes):
                return False
            self._put(key, shape, data)
        return True

    def put_pooled(self, chunk: PoolChunk) -> None:
        """Queue a chunk that is in the pool, unless it is already queued."""
        with self._changed:
            if not self.knows(chunk.key) and not self._is_closing:
                self._pooled.add(chunk)
                self._changed.notify_all()

    def leave_pool(self) -> None:
        """Must be called before the pool frees its memory. Copies all waiting chunks."""
        with self._changed:
            self._leave_pool(self._pooled.chunks())

    @property
    def num_queued_bytes(self) -> int:
        """Bytes of queued copies, including one that is being written."""
        return self._num_queued_bytes

    def flush(self, timeout_s: float) -> bool:
        """Wait until the queues are empty. False: the timeout passed."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._num_waiting, timeout_s)

    def clear(self, folder: str | None = None) -> None:
        """Drop queued chunks, of one folder or all, except the one being written."""
        with self._changed:
            keys = [*self._queued, *(chunk.key for chunk in self._pooled.chunks())]
            self._drop([key for key in keys if folder in (None, key.folder)])

    def drop(self, keys: Sequence[ChunkKey]) -> None:
        """Drop these chunks from the queues. One that is being written is deleted afterwards."""
        with self._changed:
            self._drop(keys)
            self._is_unwanted = self._is_unwanted or self._writing in keys

    def stop(self, timeout_s: float, at_end: Callable[[], None]) -> None:
        """Close without waiting. The thread calls `at_end` before it ends."""
        with self._changed:
            self._drops_at, self._at_end = time.monotonic() + timeout_s, at_end
            self._is_closing = True
            self._changed.notify_all()

    def close(self, timeout_s: float) -> None:
        """End the thread after it wrote the queued chunks; after the timeout they are dropped. The
        pool is not read afterwards. Idempotent."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if not self.flush(timeout_s):
            logger.warning("KV store: %d chunks were not written in time", self._num_waiting)
            self.clear()
        with self._changed:
            self._changed.wait_for(lambda: self._copying is None)
        self._thread.join(timeout_s)

    @property
    def _num_waiting(self) -> int:
        return len(self._queued) + len(self._pooled) + (self._writing is not None)

    def _has_room(self, num_bytes: int) -> bool:
        """Whether `num_bytes` fit into the queue; counts a dropped chunk if not."""
        if self._is_closing:
            return False
        has_room = self._num_queued_bytes + num_bytes <= self._max_queued_bytes
        if not has_room:
            self._counts.add("store_dropped", "queue_full")
        return has_room

    def _put(self, key: ChunkKey, shape: ChunkShape, data: Buffer) -> None:
        self._queued[key] = (data, shape)
        self._num_queued_bytes += shape.num_bytes
        self._changed.notify_all()

    def _drop(self, keys: Iterable[ChunkKey]) -> None:
        for key in keys:
            chunk = self._pooled.get(key)
            if chunk is not None and chunk is not self._copying:
                self._pooled.remove(chunk)
            if key in self._queued and key != self._writing:
                self._num_queued_bytes -= self._queued.pop(key)[1].num_bytes
        self._changed.notify_all()

    def _leave_pool(self, chunks: Sequence[PoolChunk]) -> None:
        for chunk in chunks:
            self._changed.wait_for(lambda chunk=chunk: self._copying is not chunk)  # type: ignore[misc]
            if self._pooled.get(chunk.key) is not chunk:
                continue  # the thread has copied it
            self._pooled.remove(chunk)
            if self._has_room(chunk.shape.num_bytes):
                data = bytearray(chunk.shape.num_bytes)
                if chunk.copy_to(memoryview(data)):
                    self._put(chunk.key, chunk.shape, data)
        self._changed.notify_all()

    def _run(self) -> None:
        self._write_all()
        at_end, self._at_end = self._at_end, _nothing
        at_end()

    def _write_all(self) -> None:
        """Write until the queues are empty and closed."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._num_waiting or self._is_closing)
                if time.monotonic() >= self._drops_at:
                    self.clear()
                if self._queued:  # first, because copies take memory
                    key = self._writing = next(iter(self._queued))
                elif self._pooled:
                    self._copying = self._pooled.first()
                    key = self._writing = self._copying.key
                else:
                    return
            try:
                self._write_next(key)
            except Exception:
                logger.exception("KV store: chunk %s was not written", key.name)
            with self._changed:
                entry = self._queued.pop(key, None)
                self._num_queued_bytes -= 0 if entry is None else entry[1].num_bytes
                self._writing = None
                is_unwanted, self._is_unwanted = self._is_unwanted, False
                self._changed.notify_all()
            if is_unwanted:
                for tier in self._tiers:
                    tier.delete(key)

    def _write_next(self, key: ChunkKey) -> None:
        if self._copying is not None:
            parts = self._copy(self._copying)
        else:
            data, shape = self._queued[key]
            parts = encode(key, shape, data)
        if parts:
            for tier in self._tiers:
                tier.write(key, parts)
            self._written(key)

    def _copy(self, chunk: PoolChunk) -> list[Buffer]:
        """Return an encoded chunk in the thread's buffer, as one part; empty if the copy failed."""
        num_bytes = HEADER_BYTES + chunk.shape.num_bytes
        if self._buffer is None or len(self._buffer) < num_bytes:
            self._buffer = page_memory(num_bytes)
        encoded = self._buffer[:num_bytes]
        is_copied = False
        try:
            is_copied = chunk.copy_to(encoded[HEADER_BYTES:])
        finally:
            with self._changed:
                self._pooled.remove(chunk)
                self._copying = None
                self._changed.notify_all()
        if not is_copied:
            return []
        encoded[:HEADER_BYTES] = encode(chunk.key, chunk.shape, encoded[HEADER_BYTES:])[0]
        return [encoded]


def _nothing() -> None:
    """Default of `_at_end`."""
