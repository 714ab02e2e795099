"""`DiskTier`: chunks in files. They outlive the process, and several processes may share them.

`contains` uses an index in memory and makes no system call. All files are scanned at the start,
when the directory is full, and when another process has changed it. The scan runs on the tier's
thread or on the writing thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from quire.kvstore.chunks import ChunkKey
from quire.kvstore.eviction import ByteLru, Entry
from quire.kvstore.tiers import disk_files
from quire.kvstore.tiers.base import Buffer, Tier, TierError, TierUsage, TierWatcher
from quire.kvstore.tiers.disk_index import DiskIndex
from quire.kvstore.tiers.disk_paths import tier_errors

_LOW_SHARE = 0.95
"""Share of `max_bytes` that is kept when the directory is full. So one scan frees a twentieth of
it."""
_START_S = 0.5
"""Seconds that a new tier waits for its first scan, which continues in the background."""
_TICK_S = 0.5
_SCAN_SHARE = 0.01
"""Maximum share of time spent in scans for changes of other processes."""
_STAMP_S = 30.0
"""Interval at which times of last use are written to the files."""
_CLOSE_S = 5.0


class DiskTier(Tier):
    """Chunk files below one directory with LRU eviction."""

    name = "disk"
    is_local = True

    def __init__(
        self,
        path: Path,
        max_bytes: int,
        ttl_s: float | None = None,
        folder_bytes: int | None = None,
    ) -> None:
        """`max_bytes`: limit for all models and processes that share `path`, which is created if
        missing. `ttl_s`: chunks that were not used for this time are removed. `folder_bytes`: limit
        per folder; each process applies it to the files it knows.

        Raises TierError if `path` cannot hold files.
        """
        self._root = path
        self._max_bytes = max_bytes
        self._index = DiskIndex(
            path,
            lambda: ByteLru(
                max_bytes, folder_bytes=folder_bytes, ttl_s=ttl_s, low_share=_LOW_SHARE
            ),
        )
        with tier_errors(path, "opened"):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._index.ledger():
                pass  # checks that the ledger can be created and locked
        self._next_scan = self._next_stamp = 0.0
        self._stop, self._is_scanned = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._maintain, name="kv-disk", daemon=True)
        self._thread.start()
        self._is_scanned.wait(_START_S)

    def contains(self, keys: Sequence[ChunkKey]) -> list[bool]:
        return self._index.use([_entry(key) for key in keys])

    def find(self, keys: Sequence[ChunkKey]) -> list[bool]:
        entries = [_entry(key) for key in keys]
        with tier_errors(self._root, "looked at"):
            for entry, is_known in zip(entries, self._index.use(entries), strict=True):
                num_bytes = None if is_known else disk_files.size(self._root, entry)
                if num_bytes is not None:
                    self._index.put(entry, num_bytes)
        return self.contains(keys)

    def read(self, key: ChunkKey, max_bytes: int) -> Buffer | None:
        return self.read_into(key, max_bytes, None)

    def read_into(self, key: ChunkKey, max_bytes: int, into: memoryview | None) -> Buffer | None:
        entry = _entry(key)
        with tier_errors(self._root, "read"):
            data = disk_files.read(self._root, entry, max_bytes, into)
            if data is None:
                self._index.forget(entry)
                if disk_files.size(self._root, entry) is not None:
                    self._index.remove(entry)
            elif entry not in self._index:  # another process wrote it
                self._index.put(entry, len(data))
        return data

    def write(self, key: ChunkKey, parts: Sequence[Buffer]) -> None:
        entry = _entry(key)
        if entry in self._index:
            return
        if self._stop.is_set():
            raise TierError("the disk tier is closed")
        with tier_errors(self._root, "written"):
            self._index.write(entry, parts)

    def delete(self, key: ChunkKey) -> None:
        with tier_errors(self._root, "removed"):
            self._index.remove(_entry(key))

    def pin(self, key: ChunkKey) -> None:
        with self._index.books() as books:
            books.pin(_entry(key))

    def unpin(self, key: ChunkKey) -> None:
        with self._index.books() as books:
            books.unpin(_entry(key), time.time_ns())

    def watch(self, tell: TierWatcher) -> None:
        self._index.watch(tell)

    def num_chunks(self, folder: str | None = None) -> int:
        with self._index.books() as books:
            return len(books.in_folder(folder))

    def clear(self, folder: str | None = None) -> None:
        with self._index.books() as books:
            books.unpin_all(folder, time.time_ns())
            entries = books.in_folder(folder)
        with tier_errors(self._root, "removed"):
            for entry in entries:
                self._index.remove(entry)

    def usage(self) -> TierUsage:
        with self._index.books() as books:
            return TierUsage(len(books), books.num_bytes, self._max_bytes)

    def bytes_by_folder(self) -> dict[str, int]:
        """Return the bytes of each model and tenant."""
        with self._index.books() as books:
            return books.bytes_by_folder()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(_CLOSE_S)

    def _maintain(self) -> None:
        """Body of the tier's own thread."""
        while True:
            with suppress(OSError, TierError):  # users of the tier get the same error
                self._tick()
            self._is_scanned.set()
            if self._stop.wait(_TICK_S):
                break
        with suppress(OSError):
            self._index.stamp()

    def _tick(self) -> None:
        """Read changes of other processes, drop expired chunks, write times of last use."""
        begun = time.monotonic()
        if begun >= self._next_scan and self._index.must_scan():
            try:
                with self._index.ledger() as ledger:
                    self._index.scan(ledger)
            finally:
                now = time.monotonic()
                self._next_scan = now + (now - begun) / _SCAN_SHARE
        if begun >= self._next_stamp:
            self._next_stamp = begun + _STAMP_S
            self._index.stamp()


def _entry(key: ChunkKey) -> Entry:
    return Entry(key.folder, key.name)
