"""What the store is asked for, and what it says: plain records between threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from quire.kvstore.chunks import ChunkKey, ChunkShape


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """A chunk by its name and size. Its tail may be missing: it has one block or more."""

    key: ChunkKey
    num_blocks: int


@dataclass(frozen=True, eq=False, slots=True)
class PoolChunk:
    """A computed chunk, in blocks of the pool that do not change until they are reused."""

    key: ChunkKey
    shape: ChunkShape
    block_ids: Sequence[int]
    copy_to: Callable[[memoryview], bool]
    """Copies its K/V out of the pool, on any thread. False: that failed."""


CopyIn = Callable[[memoryview], bool]
"""Copies a piece of the K/V of a chunk, which it is given whole, into blocks of the pool, on any
thread. False: that failed."""


class LoadJob:
    """Chunks that a request waits for, in the order in which they are wanted.

    Readers copy them into blocks that are reserved for them. From `close` on, which the engine's
    thread calls before it gives the blocks back, nothing is written to these any more.
    """

    def __init__(
        self,
        request_id: str,
        chunks: Sequence[StoredChunk],
        copies: Sequence[Sequence[CopyIn]],
        deadline: float,
    ) -> None:
        """`copies`: the pieces of each chunk. `deadline`: `time.monotonic()` from which nobody
        waits."""
        self.request_id = request_id
        self.chunks = chunks
        self.deadline = deadline
        self.is_cancelled = False
        """Set by the engine's thread, read by the readers: the rest need not be read."""
        self._copies = copies
        self._changed = threading.Condition()
        self._num_copying = 0

    def num_pieces(self, index: int) -> int:
        """Of a chunk."""
        return len(self._copies[index])

    def copy(self, index: int, piece: int, data: memoryview) -> bool:
        """Copies a piece of a chunk into its blocks. False: that failed, or the job is closed. Any
        thread."""
        with self._changed:
            if self.is_cancelled:
                return False
            self._num_copying += 1
        try:
            return self._copies[index][piece](data)
        finally:
            with self._changed:
                self._num_copying -= 1
                self._changed.notify_all()

    def close(self) -> None:
        """Nothing is copied any more when this returns: it waits for pieces that are being copied,
        which takes some milliseconds. Idempotent."""
        with self._changed:
            self.is_cancelled = True
            self._changed.wait_for(lambda: not self._num_copying)


@dataclass(frozen=True, slots=True)
class LoadedChunk:
    """One chunk of a job was looked for."""

    job: LoadJob
    index: int
    """Of the chunk in the job."""
    is_copied: bool
    """Its K/V is verified and in its blocks. False: it could not be had."""
    tier: str = ""


@dataclass(eq=False, slots=True)
class LookupJob:
    """Chunks whose presence in far tiers is asked for, for a request that waits for the answer."""

    request_id: str
    wholes: list[list[ChunkKey]]
    """The whole chunks of a prompt in order of position, or the last ones, each of all groups."""
    tails: list[list[ChunkKey]]
    """What may follow after so many whole chunks: chunks that end before the next one does."""
    deadline: float
    awaited: frozenset[ChunkKey] = frozenset()
    """What another engine is about to store: it is asked for until it is there, in all tiers."""
    found: set[ChunkKey] = field(default_factory=set)
    num_seen: int = 0
    """How many were found when it was last looked at."""
    num_loaded: int = 0
    """How many were found when the last part of them was loaded."""

    @property
    def is_complete(self) -> bool:
        """Whether there is nothing to wait for."""
        return self.found.issuperset(self.awaited)
