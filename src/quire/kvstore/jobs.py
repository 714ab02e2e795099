"""Jobs for the KV store and their results: plain records passed between threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from quire.kvstore.chunks import ChunkKey, ChunkShape


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """The key and the size of a chunk. A chunk at the end of a prefix may be shorter than a whole
    one, but has at least one block."""

    key: ChunkKey
    num_blocks: int


@dataclass(frozen=True, eq=False, slots=True)
class PoolChunk:
    """A computed chunk in blocks of the pool, which do not change until they are reused."""

    key: ChunkKey
    shape: ChunkShape
    block_ids: Sequence[int]
    copy_to: Callable[[memoryview], bool]
    """Copies the chunk's K/V out of the pool. Callable on any thread. False: the copy failed."""


CopyIn = Callable[[memoryview], bool]
"""Copies one piece of a chunk into blocks of the pool; its argument is the K/V of the whole chunk.
Callable on any thread. False: the copy failed."""


class LoadJob:
    """Chunks that a request waits for, in the order in which it needs them.

    Readers copy them into blocks that are reserved for them. The engine's thread calls `close`
    before it frees the blocks; nothing is written to them afterwards.
    """

    def __init__(
        self,
        request_id: str,
        chunks: Sequence[StoredChunk],
        copies: Sequence[Sequence[CopyIn]],
        deadline: float,
    ) -> None:
        """`copies`: the pieces of each chunk. `deadline`: value of `time.monotonic()` after which
        the request does not wait any longer."""
        self.request_id = request_id
        self.chunks = chunks
        self.deadline = deadline
        self.is_cancelled = False
        """Set by the engine's thread: readers skip the remaining chunks."""
        self._copies = copies
        self._changed = threading.Condition()
        self._num_copying = 0

    def num_pieces(self, index: int) -> int:
        """Number of pieces of the chunk at `index`."""
        return len(self._copies[index])

    def copy(self, index: int, piece: int, data: memoryview) -> bool:
        """Copy a piece of a chunk into its blocks. False: the copy failed or the job is closed. Any
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
        """Stop copying. Waits some milliseconds for pieces that are being copied. Idempotent."""
        with self._changed:
            self.is_cancelled = True
            self._changed.wait_for(lambda: not self._num_copying)


@dataclass(frozen=True, slots=True)
class LoadedChunk:
    """Result of one chunk of a job."""

    job: LoadJob
    index: int
    """Index of the chunk in the job."""
    is_copied: bool
    """True: the verified K/V is in its blocks. False: the chunk could not be loaded."""
    tier: str = ""


@dataclass(eq=False, slots=True)
class LookupJob:
    """Query of a waiting request: which of these chunks do far tiers have?"""

    request_id: str
    wholes: list[list[ChunkKey]]
    """Whole chunks of the prompt, or the last ones of them, in order of position; one list of keys
    for all groups each."""
    tails: list[list[ChunkKey]]
    """`tails[n]`: chunks that may follow the first n whole chunks and end before the next whole
    one."""
    deadline: float
    awaited: frozenset[ChunkKey] = frozenset()
    """Chunks that another engine is about to store. All tiers are polled for them until they
    appear."""
    found: set[ChunkKey] = field(default_factory=set)
    num_seen: int = 0
    """Number of chunks found at the last check."""
    num_loaded: int = 0
    """Number of chunks found when the last part of them was loaded."""

    @property
    def is_complete(self) -> bool:
        """Whether all awaited chunks were found."""
        return self.found.issuperset(self.awaited)
