"""`DiskIndex`: an index, in memory, of a directory of chunks; it also reserves room for new files.

The files are the authority: a scan under the lock of the directory builds the index, which then
follows the changes that this process makes. All files of the directory, unfinished ones included,
never have more than `max_bytes`: a writer reserves its bytes in the ledger before it writes.

Methods that touch files raise OSError.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from quire.kvstore.eviction import ByteLru, Entry
from quire.kvstore.tiers import disk_files
from quire.kvstore.tiers.base import Buffer, TierError, TierWatcher
from quire.kvstore.tiers.disk_files import UnfinishedFile
from quire.kvstore.tiers.disk_ledger import Ledger, changes_of, locked


class DiskIndex:
    """Index of one directory. Empty until the first scan. Safe for threads."""

    def __init__(self, root: Path, new_books: Callable[[], ByteLru]) -> None:
        """`new_books`: creates empty bookkeeping with the limits of the tier."""
        self._root = root
        self._new_books = new_books
        self._lock = threading.Lock()
        """Guards the next two attributes. Never held during file access."""
        self._books = new_books()
        self._used: dict[Entry, int] = {}
        """Uses that are not yet written to the files' times, in order."""
        self._seen_changes = 0
        """Change count of the ledger up to which the index is current."""
        self._must_scan = True
        self._tell: TierWatcher | None = None

    def __contains__(self, entry: Entry) -> bool:
        return entry in self._books

    @contextmanager
    def books(self) -> Iterator[ByteLru]:
        """Return the bookkeeping under the lock, which must be held briefly."""
        with self._lock:
            yield self._books

    def watch(self, tell: TierWatcher) -> None:
        """Report present entries to `tell`, and later every stored or dropped one."""
        with self._lock:
            self._tell = tell
            tell([entry.name for entry in self._books], True)

    def use(self, entries: Sequence[Entry]) -> list[bool]:
        """Return which entries are present. These count as used, the first one most recently."""
        now_ns = time.time_ns()
        with self._lock:
            found = [entry in self._books for entry in entries]
            for at, entry in enumerate(reversed(entries)):
                if self._books.touch(entry, now_ns + at):
                    self._used.pop(entry, None)
                    self._used[entry] = now_ns + at
        return found

    def put(self, entry: Entry, num_bytes: int) -> None:
        """Add an entry whose file was found."""
        with self._lock:
            is_new = entry not in self._books
            self._books.put(entry, num_bytes, time.time_ns())
            if is_new and self._tell is not None:
                self._tell([entry.name], True)

    def forget(self, entry: Entry) -> None:
        """Remove an entry whose file was found missing."""
        with self._lock:
            was_there = self._books.drop(entry)
            self._used.pop(entry, None)
            if was_there and self._tell is not None:
                self._tell([entry.name], False)

    def remove(self, entry: Entry) -> None:
        """Remove the file of an entry, if there is one."""
        self.forget(entry)
        with self.ledger() as ledger:
            ledger.add(-disk_files.remove(self._root, entry))

    def write(self, entry: Entry, parts: Sequence[Buffer]) -> None:
        """Write a file unless it exists. Raises TierError if there is not enough room for it."""
        num_bytes = sum(memoryview(part).nbytes for part in parts)
        file = self._reserve(entry, num_bytes)
        if file is None:
            return
        is_published = False
        try:
            file.write(parts)
            with self.ledger():
                if disk_files.size(self._root, entry) is None:  # else another writer was faster
                    file.publish()
                    is_published = True
                self.put(entry, num_bytes)
        finally:
            if not is_published:
                self._give_up(file, num_bytes)

    def must_scan(self) -> bool:
        """Whether another process changed something, or an entry expired."""
        with self._lock:
            has_expired = self._books.has_expired(time.time_ns())
        return has_expired or self._must_scan or changes_of(self._root) != self._seen_changes

    def scan(self, ledger: Ledger, folder: str = "", num_bytes: int = 0) -> None:
        """Rebuild the bookkeeping and the ledger from the files, and make room for `num_bytes` in
        `folder`.

        Raises TierError if there is not enough room.
        """
        begun_ns = time.time_ns()
        old, fresh = self._books, self._new_books()
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
            self._tell_changes(old, fresh)
            self._books = fresh
            self._must_scan = False
        if dropped is None:
            raise TierError(f"there is not enough room for {num_bytes} bytes in {self._root}")

    def stamp(self) -> None:
        """Write times of last use to the files, for other processes and the next start."""
        with self._lock:
            used, self._used = self._used, {}
        for entry, used_ns in used.items():
            disk_files.stamp(self._root, entry, used_ns)

    @contextmanager
    def ledger(self) -> Iterator[Ledger]:
        """Lock and return the ledger. Notes whether another process has changed it."""
        with locked(self._root) as ledger:
            if ledger.changes != self._seen_changes:
                self._must_scan = True
            try:
                yield ledger
            finally:
                self._seen_changes = ledger.changes

    def _tell_changes(self, old: ByteLru, fresh: ByteLru) -> None:
        if self._tell is None:
            return
        before, now = set(old), set(fresh)
        for names, is_stored in ((now - before, True), (before - now, False)):
            if names:
                self._tell([entry.name for entry in names], is_stored)

    def _reserve(self, entry: Entry, num_bytes: int) -> UnfinishedFile | None:
        """Make room for a file and create it unfinished. None: the file exists already."""
        with self.ledger() as ledger:
            there = disk_files.size(self._root, entry)
            if there is not None:
                self.put(entry, there)
                return None
            with self._lock:
                has_room = self._books.has_room(entry.folder, num_bytes)
            if not (has_room and self._has_room(ledger, num_bytes)):
                self.scan(ledger, entry.folder, num_bytes)
            ledger.add(num_bytes)
            try:
                return UnfinishedFile(self._root, entry, num_bytes)
            except BaseException:
                ledger.add(-num_bytes)
                raise

    def _give_up(self, file: UnfinishedFile, num_bytes: int) -> None:
        """Discard the file and free its bytes in the ledger under one lock: a scan in between would
        not count the file, and its bytes would then be subtracted twice."""
        try:
            with suppress(OSError), self.ledger() as ledger:
                file.discard()
                ledger.add(-num_bytes)
        finally:
            file.discard()

    def _has_room(self, ledger: Ledger, num_bytes: int) -> bool:
        return ledger.is_counted and ledger.num_bytes + num_bytes <= self._books.max_bytes
