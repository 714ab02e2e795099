"""`DiskTier`: chunks in files. They outlive the process, and several processes may share them.

What is where is known from an index in memory, so `contains` makes no system call. The files are
the truth: the index is made of them at the start, again when there is no room left, and when
another process has changed something. A scan of all files happens under the lock of the
directory, on a thread of the tier's or of whoever writes.

Of all files of a directory, unfinished ones too, there are never more than `max_bytes`: each writer
takes its bytes from the ledger before it writes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from quire.kvstore.chunks import ChunkKey
from quire.kvstore.eviction import ByteLru, Entry
from quire.kvstore.tiers import disk_files
from quire.kvstore.tiers.base import Buffer, Tier, TierError, TierUsage
from quire.kvstore.tiers.disk_files import UnfinishedFile
from quire.kvstore.tiers.disk_ledger import Ledger, changes_of, locked

_LOW_SHARE = 0.95
"""Once the directory is full, so much of it is left: there is a scan for each twentieth of it."""
_START_S = 1.0
"""How long a new tier waits for its first scan, which goes on behind it."""
_TICK_S = 5.0
_SCAN_SHARE = 0.05
"""Most of the time that is spent in scans for changes of other processes."""
_STAMP_S = 30.0
"""How often the time of the last use is written to files."""
_CLOSE_S = 5.0


class DiskTier(Tier):
    """Chunk files below one directory, least recently used ones dropped first."""

    name = "disk"
    is_local = True

    def __init__(
        self,
        path: Path,
        max_bytes: int,
        ttl_s: float | None = None,
        folder_bytes: int | None = None,
    ) -> None:
        """`max_bytes`: of all models and processes that share `path`, which is made if it is not
        there. `ttl_s`: chunks that nobody has used for so long are removed. `folder_bytes`: most
        bytes of one folder; two processes may both go to that bound.

        Raises TierError if there can be no files in `path`.
        """
        self._root = path
        self._max_bytes = max_bytes
        self._ttl_s = ttl_s
        self._folder_bytes = folder_bytes
        self._lock = threading.Lock()
        """Of the five below. Nobody waits for a file with it held."""
        self._index = self._new_index()
        self._used: dict[Entry, int] = {}
        """Uses that are not yet in the files' times, in order."""
        self._seen_changes = 0
        """Of the ledger, that are in the index."""
        self._must_scan = True
        with self._errors("opened"):
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._ledger():
                pass
        self._next_scan = self._next_stamp = 0.0
        self._stop, self._is_scanned = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._maintain, name="kv-disk", daemon=True)
        self._thread.start()
        self._is_scanned.wait(_START_S)

    def contains(self, keys: Sequence[ChunkKey]) -> list[bool]:
        entries = [_entry(key) for key in keys]
        now_ns = time.time_ns()
        with self._lock:
            found = [entry in self._index for entry in entries]
            for at, entry in enumerate(reversed(entries)):
                if self._index.touch(entry, now_ns + at):
                    self._used.pop(entry, None)
                    self._used[entry] = now_ns + at
        return found

    def read(self, key: ChunkKey, max_bytes: int) -> Buffer | None:
        entry = _entry(key)
        with self._errors("read"):
            data = disk_files.read(self._root, entry, max_bytes)
            if data is None:
                self._forget(entry)
                if disk_files.size(self._root, entry) is not None:
                    self._remove(entry)
            elif entry not in self._index:  # another process wrote it
                self._put(entry, len(data))
        return data

    def write(self, key: ChunkKey, parts: Sequence[Buffer]) -> None:
        entry = _entry(key)
        if entry in self._index:
            return
        if self._stop.is_set():
            raise TierError("the disk tier is closed")
        num_bytes = sum(memoryview(part).nbytes for part in parts)
        with self._errors("written"):
            file = self._reserve(entry, num_bytes)
            if file is not None:
                self._fill(file, entry, parts, num_bytes)

    def delete(self, key: ChunkKey) -> None:
        with self._errors("removed"):
            self._forget(_entry(key))
            self._remove(_entry(key))

    def pin(self, key: ChunkKey) -> None:
        """This process never drops the chunk, until it is unpinned as often."""
        with self._lock:
            self._index.pin(_entry(key))

    def unpin(self, key: ChunkKey) -> None:
        with self._lock:
            self._index.unpin(_entry(key), time.time_ns())

    def usage(self) -> TierUsage:
        with self._lock:
            return TierUsage(len(self._index), self._index.num_bytes, self._max_bytes)

    def bytes_by_folder(self) -> dict[str, int]:
        """What each model and tenant has."""
        with self._lock:
            return self._index.bytes_by_folder()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(_CLOSE_S)

    def _reserve(self, entry: Entry, num_bytes: int) -> UnfinishedFile | None:
        """Makes room for a file and begins it. None: it is there already."""
        with self._ledger() as ledger:
            there = disk_files.size(self._root, entry)
            if there is not None:
                self._put(entry, there)
                return None
            with self._lock:
                has_room = self._index.has_room(entry.folder, num_bytes)
            if not (has_room and self._has_room(ledger, num_bytes)):
                self._scan(ledger, entry.folder, num_bytes)
            ledger.add(num_bytes)
            try:
                return UnfinishedFile(self._root, entry, num_bytes)
            except BaseException:
                ledger.add(-num_bytes)
                raise

    def _has_room(self, ledger: Ledger, num_bytes: int) -> bool:
        return ledger.is_counted and ledger.num_bytes + num_bytes <= self._max_bytes

    def _fill(
        self, file: UnfinishedFile, entry: Entry, parts: Sequence[Buffer], num_bytes: int
    ) -> None:
        is_published = False
        try:
            file.write(parts)
            with self._ledger():
                if disk_files.size(self._root, entry) is None:  # else another one was faster
                    file.publish()
                    is_published = True
                self._put(entry, num_bytes)
        finally:
            if not is_published:
                file.discard()
                with suppress(OSError), self._ledger() as ledger:
                    ledger.add(-num_bytes)

    def _scan(self, ledger: Ledger, folder: str = "", num_bytes: int = 0) -> None:
        """Makes the index and the ledger of the files, and room for `num_bytes`.

        Raises TierError if there cannot be room.
        """
        begun_ns = time.time_ns()
        old, fresh = self._index, self._new_index()
        with self._lock:
            fresh.take_pins(old)
        unfinished = disk_files.remove_abandoned(self._root)
        files = [
            (max(file.used_ns, old.used_ns(file.entry)), file)
            for file in disk_files.scan(self._root)
        ]
        for used_ns, file in sorted(files, key=lambda pair: pair[0]):
            fresh.put(file.entry, file.num_bytes, used_ns)
        ledger.set(fresh.num_bytes + unfinished)
        dropped = fresh.make_room(folder, num_bytes, begun_ns, unfinished)
        for entry in dropped or ():
            ledger.add(-disk_files.remove(self._root, entry))
        with self._lock:
            for entry, used_ns in self._used.items():
                if used_ns >= begun_ns:
                    fresh.touch(entry, used_ns)
            fresh.take_pins(old)
            self._index = fresh
            self._must_scan = False
        if dropped is None:
            raise TierError(f"there can be no room for {num_bytes} bytes in {self._root}")

    def _maintain(self) -> None:
        """The tier's own thread."""
        while True:
            with suppress(OSError, TierError):
                self._tick()
            self._is_scanned.set()
            if self._stop.wait(_TICK_S):
                break
        with suppress(OSError):
            self._stamp()

    def _tick(self) -> None:
        """Takes in what other processes did, drops what has expired, stamps what was used."""
        with self._lock:
            has_expired = self._index.has_expired(time.time_ns())
        must_scan = self._must_scan or changes_of(self._root) != self._seen_changes
        begun = time.monotonic()
        if (must_scan or has_expired) and begun >= self._next_scan:
            with self._ledger() as ledger:
                self._scan(ledger)
            now = time.monotonic()
            self._next_scan = now + (now - begun) / _SCAN_SHARE
        if begun >= self._next_stamp:
            self._next_stamp = begun + _STAMP_S
            self._stamp()

    def _stamp(self) -> None:
        with self._lock:
            used, self._used = self._used, {}
        for entry, used_ns in used.items():
            disk_files.stamp(self._root, entry, used_ns)

    def _put(self, entry: Entry, num_bytes: int) -> None:
        with self._lock:
            self._index.put(entry, num_bytes, time.time_ns())

    def _forget(self, entry: Entry) -> None:
        with self._lock:
            self._index.drop(entry)
            self._used.pop(entry, None)

    def _remove(self, entry: Entry) -> None:
        with self._ledger() as ledger:
            ledger.add(-disk_files.remove(self._root, entry))

    @contextmanager
    def _ledger(self) -> Iterator[Ledger]:
        """The ledger, locked. Notes whether others have changed it."""
        with locked(self._root) as ledger:
            if ledger.changes != self._seen_changes:
                self._must_scan = True
            try:
                yield ledger
            finally:
                self._seen_changes = ledger.changes

    @contextmanager
    def _errors(self, done: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            why = error.strerror or str(error)
            raise TierError(f"chunks in {self._root} cannot be {done}: {why}") from error

    def _new_index(self) -> ByteLru:
        return ByteLru(
            self._max_bytes,
            folder_bytes=self._folder_bytes,
            ttl_s=self._ttl_s,
            low_share=_LOW_SHARE,
        )


def _entry(key: ChunkKey) -> Entry:
    return Entry(key.folder, key.name)
