"""LRU bookkeeping of a tier that enforces its own limits: its entries, their bytes, and the order
of eviction.

Entries of one model and one tenant share a folder. This module does not know chunks or files; the
owner removes the entries that a method returns, and does the locking.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple


class Entry(NamedTuple):
    """Identifies an entry."""

    folder: str
    name: str


@dataclass(slots=True)
class _Record:
    num_bytes: int
    used_ns: int


@dataclass(slots=True)
class _Folder:
    num_entries: int = 0
    num_bytes: int = 0
    pinned_bytes: int = 0
    order: OrderedDict[Entry, None] = field(default_factory=OrderedDict)


class ByteLru:
    """Entries of a tier in LRU order. Times are nanoseconds since 1970 and never go back.

    Invariant: `_order`, and `order` of each folder, hold all entries that are not pinned, least
    recently used first. Not safe for threads.
    """

    def __init__(
        self,
        max_bytes: int,
        *,
        folder_bytes: int | None = None,
        ttl_s: float | None = None,
        low_share: float = 1.0,
    ) -> None:
        """`folder_bytes`: maximum number of bytes in one folder. `low_share`: when the tier is
        full, entries are dropped until this share of `max_bytes` is used, including the new
        entry."""
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self._folder_bytes = max_bytes if folder_bytes is None else folder_bytes
        self._ttl_ns = None if ttl_s is None else int(ttl_s * 1e9)
        self._low_bytes = int(max_bytes * low_share)
        self._records: dict[Entry, _Record] = {}
        self._order: OrderedDict[Entry, None] = OrderedDict()
        self._folders: dict[str, _Folder] = {}
        self._pins: Counter[Entry] = Counter()
        self._pinned_bytes = 0

    def __contains__(self, entry: Entry) -> bool:
        return entry in self._records

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._records)

    def used_ns(self, entry: Entry) -> int:
        """Time of the last use; 0 if the entry is missing."""
        record = self._records.get(entry)
        return 0 if record is None else record.used_ns

    def bytes_by_folder(self) -> dict[str, int]:
        return {name: folder.num_bytes for name, folder in self._folders.items()}

    def in_folder(self, folder: str | None) -> list[Entry]:
        """Return the entries of one folder, or all entries if `folder` is None."""
        return [entry for entry in self._records if folder in (None, entry.folder)]

    def put(self, entry: Entry, num_bytes: int, now_ns: int) -> None:
        """Add or replace an entry. It becomes the most recently used one."""
        self.drop(entry)
        folder = self._folders.setdefault(entry.folder, _Folder())
        self._records[entry] = _Record(num_bytes, now_ns)
        self.num_bytes += num_bytes
        folder.num_bytes += num_bytes
        folder.num_entries += 1
        if entry in self._pins:
            self._pinned_bytes += num_bytes
            folder.pinned_bytes += num_bytes
        else:
            self._order[entry] = None
            folder.order[entry] = None

    def touch(self, entry: Entry, now_ns: int) -> bool:
        """Record a use of an entry. False: the entry is missing."""
        record = self._records.get(entry)
        if record is None:
            return False
        record.used_ns = now_ns
        if entry in self._order:
            self._order.move_to_end(entry)
            self._folders[entry.folder].order.move_to_end(entry)
        return True

    def drop(self, entry: Entry) -> bool:
        """Remove an entry but keep its pins. False: the entry is missing."""
        record = self._records.pop(entry, None)
        if record is None:
            return False
        folder = self._folders[entry.folder]
        self.num_bytes -= record.num_bytes
        folder.num_bytes -= record.num_bytes
        folder.num_entries -= 1
        if entry in self._order:
            del self._order[entry], folder.order[entry]
        else:
            self._pinned_bytes -= record.num_bytes
            folder.pinned_bytes -= record.num_bytes
        if not folder.num_entries:
            del self._folders[entry.folder]
        return True

    def pin(self, entry: Entry) -> None:
        """Never drop this entry until it is unpinned as often as it was pinned. The entry may be
        added after its pin."""
        self._pins[entry] += 1
        if self._pins[entry] == 1 and entry in self._records:
            num_bytes, folder = self._records[entry].num_bytes, self._folders[entry.folder]
            del self._order[entry], folder.order[entry]
            self._pinned_bytes += num_bytes
            folder.pinned_bytes += num_bytes

    def unpin(self, entry: Entry, now_ns: int) -> None:
        """Undo one `pin`. The last one makes the entry the most recently used one."""
        if self._pins[entry] > 1:
            self._pins[entry] -= 1
        elif self._pins.pop(entry, 0) and entry in self._records:
            record, folder = self._records[entry], self._folders[entry.folder]
            record.used_ns = now_ns
            self._pinned_bytes -= record.num_bytes
            folder.pinned_bytes -= record.num_bytes
            self._order[entry] = None
            folder.order[entry] = None

    def unpin_all(self, folder: str | None, now_ns: int) -> None:
        """Undo every `pin` of one folder, or of all folders if it is None. The entries become the
        most recently used ones, ordered by name."""
        for entry in sorted(one for one in self._pins if folder in (None, one.folder)):
            self._pins[entry] = 1
            self.unpin(entry, now_ns)

    def take_pins(self, other: ByteLru) -> None:
        """Replace all pins by those of `other`."""
        for entry in self._pins.keys() - other._pins.keys():
            self._pins[entry] = 1
            self.unpin(entry, self.used_ns(entry))
        for entry, count in other._pins.items():
            self.pin(entry)
            self._pins[entry] = count

    def has_room(self, folder: str, num_bytes: int, other_bytes: int = 0) -> bool:
        """Whether `num_bytes` can be added without dropping anything.

        `other_bytes`: bytes that count towards the limit and do not belong to an entry.
        """
        of_folder = self._folders[folder].num_bytes if folder in self._folders else 0
        return (
            self.num_bytes + other_bytes + num_bytes <= self.max_bytes
            and of_folder + num_bytes <= self._folder_bytes
        )

    def make_room(
        self, folder: str, num_bytes: int, now_ns: int, other_bytes: int = 0
    ) -> list[Entry] | None:
        """Drop expired entries, then as many as needed to add `num_bytes` to `folder`.

        Returns the dropped entries. None: the pinned entries do not leave enough room; nothing was
        dropped.
        """
        mine = self._folders.get(folder, _Folder())
        if (
            self._pinned_bytes + other_bytes + num_bytes > self.max_bytes
            or mine.pinned_bytes + num_bytes > self._folder_bytes
        ):
            return None
        dropped = self.drop_expired(now_ns)
        added = num_bytes + other_bytes
        if self.num_bytes + added > self.max_bytes:
            while self._order and self.num_bytes + added > self._low_bytes:
                dropped.append(self._drop_oldest(self._order))
        while mine.num_bytes + num_bytes > self._folder_bytes:
            dropped.append(self._drop_oldest(mine.order))
        return dropped

    def has_expired(self, now_ns: int) -> bool:
        """Whether an unpinned entry was not used within the time to live."""
        if self._ttl_ns is None or not self._order:
            return False
        return self._records[next(iter(self._order))].used_ns <= now_ns - self._ttl_ns

    def drop_expired(self, now_ns: int) -> list[Entry]:
        """Drop expired entries and return them."""
        dropped: list[Entry] = []
        while self.has_expired(now_ns):
            dropped.append(self._drop_oldest(self._order))
        return dropped

    def _drop_oldest(self, order: OrderedDict[Entry, None]) -> Entry:
        oldest = next(iter(order))
        self.drop(oldest)
        return oldest
