"""ByteLru does what a list that is searched from its beginning would do."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from quire.kvstore.eviction import ByteLru, Entry

MAX, FOLDER_MAX, TTL_S = 100, 70, 20
ENTRIES = st.builds(Entry, st.sampled_from("ab"), st.sampled_from("0123456"))
SIZES = st.integers(0, 45)


@dataclass
class Held:
    entry: Entry
    num_bytes: int
    used_ns: int


class AgainstAList(RuleBasedStateMachine):
    """The list is in order of use; a pinned entry that is unpinned goes to its end."""

    def __init__(self) -> None:
        super().__init__()
        self.lru = ByteLru(MAX, folder_bytes=FOLDER_MAX, ttl_s=TTL_S, low_share=0.9)
        self.held: list[Held] = []
        self.pins: dict[Entry, int] = {}
        self.now = 10**12

    def _find(self, entry: Entry) -> Held | None:
        return next((held for held in self.held if held.entry == entry), None)

    def _sum(self, folder: str | None = None, *, only_pinned: bool = False) -> int:
        return sum(
            held.num_bytes
            for held in self.held
            if folder in (None, held.entry.folder)
            and (not only_pinned or self.pins.get(held.entry))
        )

    def _next(self, folder: str | None = None) -> Held | None:
        return next(
            (
                held
                for held in self.held
                if not self.pins.get(held.entry) and folder in (None, held.entry.folder)
            ),
            None,
        )

    @rule(seconds=st.integers(0, 12))
    def wait(self, seconds: int) -> None:
        self.now += seconds * 10**9 + 1

    @rule(entry=ENTRIES, size=SIZES, other=st.sampled_from([0, 0, 0, 20]))
    def add(self, entry: Entry, size: int, other: int) -> None:
        if self._find(entry) is not None:
            return
        pinned = self._sum(only_pinned=True), self._sum(entry.folder, only_pinned=True)
        dropped = self.lru.make_room(entry.folder, size, self.now, other)
        if pinned[0] + size + other > MAX or pinned[1] + size > FOLDER_MAX:
            assert dropped is None
            return
        assert dropped == self._expire() + self._make_room(entry.folder, size, other)
        assert self.lru.has_room(entry.folder, size, other)
        self.lru.put(entry, size, self.now)
        self.held.append(Held(entry, size, self.now))

    def _expire(self) -> list[Entry]:
        dropped = []
        while (old := self._next()) and old.used_ns <= self.now - TTL_S * 10**9:
            self.held.remove(old)
            dropped.append(old.entry)
        return dropped

    def _make_room(self, folder: str, size: int, other: int) -> list[Entry]:
        dropped = []
        if self._sum() + size + other > MAX:
            while self._sum() + size + other > 0.9 * MAX and (old := self._next()):
                self.held.remove(old)
                dropped.append(old.entry)
        while self._sum(folder) + size > FOLDER_MAX:
            oldest = self._next(folder)
            assert oldest is not None
            self.held.remove(oldest)
            dropped.append(oldest.entry)
        return dropped

    @rule(entry=ENTRIES)
    def use(self, entry: Entry) -> None:
        held = self._find(entry)
        assert self.lru.touch(entry, self.now) == (held is not None)
        if held is not None:
            held.used_ns = self.now
            self._to_end(held)

    @rule(entry=ENTRIES)
    def drop(self, entry: Entry) -> None:
        held = self._find(entry)
        assert self.lru.drop(entry) == (held is not None)
        if held is not None:
            self.held.remove(held)

    @rule(entry=ENTRIES)
    def pin(self, entry: Entry) -> None:
        self.lru.pin(entry)
        self.pins[entry] = self.pins.get(entry, 0) + 1

    @rule(entry=ENTRIES)
    def unpin(self, entry: Entry) -> None:
        self.lru.unpin(entry, self.now)
        count = self.pins.pop(entry, 0)
        if count > 1:
            self.pins[entry] = count - 1
        elif count and (held := self._find(entry)):
            held.used_ns = self.now
            self._to_end(held)

    @rule(folder=st.sampled_from(["a", "b", None]))
    def unpin_all(self, folder: str | None) -> None:
        self.lru.unpin_all(folder, self.now)
        for entry in sorted(one for one in self.pins if folder in (None, one.folder)):
            del self.pins[entry]
            if held := self._find(entry):
                held.used_ns = self.now
                self._to_end(held)

    @rule()
    def begin_again(self) -> None:
        """As a scan does: another one, with the same entries and pins."""
        fresh = ByteLru(MAX, folder_bytes=FOLDER_MAX, ttl_s=TTL_S, low_share=0.9)
        fresh.pin(Entry("a", "0"))
        fresh.pin(Entry("b", "6"))
        for held in self.held:
            fresh.put(held.entry, held.num_bytes, held.used_ns)
        fresh.take_pins(self.lru)
        for held in self.held:
            fresh.touch(held.entry, held.used_ns)
        self.lru = fresh

    def _to_end(self, held: Held) -> None:
        self.held.remove(held)
        self.held.append(held)

    @invariant()
    def books_agree(self) -> None:
        lru = self.lru
        assert set(lru) == {held.entry for held in self.held}
        assert len(lru) == len(self.held)
        assert lru.num_bytes == self._sum() <= MAX
        folders = {held.entry.folder for held in self.held}
        assert lru.bytes_by_folder() == {folder: self._sum(folder) for folder in folders}
        for held in self.held:
            assert held.entry in lru
            assert lru.used_ns(held.entry) == held.used_ns
        oldest = self._next()
        has_expired = oldest is not None and oldest.used_ns <= self.now - TTL_S * 10**9
        assert lru.has_expired(self.now) == has_expired


TestAgainstAList = AgainstAList.TestCase
TestAgainstAList.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


def test_entries_that_are_not_there_have_no_bytes() -> None:
    lru = ByteLru(10)
    assert lru.used_ns(Entry("a", "0")) == 0
    assert not lru.has_expired(10**30)
