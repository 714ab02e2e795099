"""What the store is asked for, and what it says: plain records between threads."""

from __future__ import annotations

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


@dataclass(eq=False, slots=True)
class LoadJob:
    """Chunks that a request waits for, in the order in which they are wanted."""

    request_id: str
    chunks: list[StoredChunk]
    deadline: float
    """`time.monotonic()` from which nobody waits any more."""
    is_cancelled: bool = False
    """Set by the engine's thread, read by the readers: the rest need not be read."""


@dataclass(frozen=True, slots=True)
class LoadedChunk:
    """One chunk of a job was looked for."""

    job: LoadJob
    index: int
    """Of the chunk in the job."""
    data: memoryview | None
    """Its K/V, verified; None: it could not be had."""
    tier: str = ""
    buffer: memoryview | None = None
    """Memory that the readers use again once the chunk is taken."""


@dataclass(eq=False, slots=True)
class LookupJob:
    """Chunks whose presence in far tiers is asked for, for a request that waits for the answer."""

    request_id: str
    wholes: list[list[ChunkKey]]
    """The whole chunks of a prompt in order of position, each of all groups."""
    tails: list[list[ChunkKey]]
    """What may follow after so many whole chunks: chunks that end before the next one does."""
    deadline: float
    awaited: frozenset[ChunkKey] = frozenset()
    """What another engine is about to store: it is asked for until it is there, in all tiers."""
    found: set[ChunkKey] = field(default_factory=set)
    num_seen: int = 0
    """How many were found when it was last looked at."""

    @property
    def is_complete(self) -> bool:
        """Whether there is nothing to wait for."""
        return self.found.issuperset(self.awaited)
