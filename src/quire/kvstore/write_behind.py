"""`WriteBehind`: chunks on their way into the tiers. Nobody waits for it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

from quire.kvstore.chunk_file import encode
from quire.kvstore.chunks import ChunkKey, ChunkShape
from quire.kvstore.counts import StoreCounts
from quire.kvstore.guarded_tier import GuardedTier
from quire.kvstore.tiers.base import Buffer
from quire.log import get_logger

logger = get_logger(__name__)


class WriteBehind:
    """A queue of bounded bytes and a thread that empties it. A chunk that does not fit is dropped,
    and counted. What is queued can be read. Any thread."""

    def __init__(
        self, tiers: Sequence[GuardedTier], counts: StoreCounts, max_queued_bytes: int
    ) -> None:
        self._tiers = tiers
        self._counts = counts
        self._max_queued_bytes = max_queued_bytes
        self._num_queued_bytes = 0
        self._changed = threading.Condition()
        self._queued: OrderedDict[ChunkKey, tuple[Buffer, ChunkShape]] = OrderedDict()
        """In order of arrival; the first is being written."""
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="kv-store-write", daemon=True)
        self._thread.start()

    def holds(self, key: ChunkKey) -> bool:
        """Whether a chunk is queued."""
        return key in self._queued

    def get(self, key: ChunkKey) -> memoryview | None:
        """The K/V of a chunk that is queued."""
        entry = self._queued.get(key)
        return None if entry is None else memoryview(entry[0]).cast("B")

    def has_room(self, num_bytes: int) -> bool:
        """Whether so much more can be queued; where not, a dropped chunk is counted."""
        has_room = self._num_queued_bytes + num_bytes <= self._max_queued_bytes
        if not has_room:
            self._counts.add("store_dropped", "queue_full")
        return has_room

    def put(self, key: ChunkKey, shape: ChunkShape, data: Buffer) -> bool:
        """Queues a chunk, which must not change any more. False: it is queued, or dropped."""
        with self._changed:
            if key in self._queued or self._is_closing:
                return False
            if not self.has_room(shape.num_bytes):
                return False
            self._queued[key] = (data, shape)
            self._num_queued_bytes += shape.num_bytes
            self._changed.notify_all()
        return True

    @property
    def num_queued_bytes(self) -> int:
        """Bytes that wait or are being written."""
        return self._num_queued_bytes

    def flush(self, timeout_s: float) -> bool:
        """Waits until nothing is queued. False: it took too long."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._queued, timeout_s)

    def clear(self, folder: str | None = None) -> None:
        """Drops what is queued, of one folder or of all, but for what is being written."""
        with self._changed:
            for key in [*self._queued][1:]:
                if folder in (None, key.folder):
                    self._num_queued_bytes -= self._queued.pop(key)[1].num_bytes
            self._changed.notify_all()

    def close(self, timeout_s: float) -> None:
        """Ends the thread: what is queued is written, for so long, and then dropped. Idempotent."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if not self.flush(timeout_s):
            logger.warning("KV store: %d chunks were not written in time", len(self._queued))
            self.clear()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queued or self._is_closing)
                if not self._queued:
                    return
                key, (data, shape) = next(iter(self._queued.items()))
            try:
                self._write(key, shape, data)
            except Exception:
                logger.exception("KV store: chunk %s was not written", key.name)
            with self._changed:
                del self._queued[key]
                self._num_queued_bytes -= shape.num_bytes
                self._changed.notify_all()

    def _write(self, key: ChunkKey, shape: ChunkShape, data: Buffer) -> None:
        parts = encode(key, shape, data)
        for tier in self._tiers:
            tier.write(key, parts)
