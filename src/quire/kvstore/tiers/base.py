"""`Tier`: the interface of a storage tier for chunks.

`KVStore` calls it from several of its own threads at once. A tier may lose any chunk at any time.
It does not know tokens, requests or models.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from quire.kvstore.chunks import ChunkKey

Buffer = bytes | bytearray | memoryview

TierWatcher = Callable[[Iterable[str], bool], None]
"""Called with the names of chunks (`ChunkKey.name`) that a tier has stored (True) or dropped
(False). Must return at once; called from any thread."""


class TierError(Exception):
    """A tier failed: a full disk, a lost connection, missing permissions.

    A missing chunk is not an error.
    """


@dataclass(frozen=True, slots=True)
class TierUsage:
    """Contents of a tier."""

    num_chunks: int
    num_bytes: int
    max_bytes: int | None
    """None: the tier limits itself, and the limit is not known here."""


class Tier(ABC):
    """Keeps encoded chunks (`chunk_file`). Safe for threads."""

    name: str
    """Name in metrics and messages: `memory`, `disk`, `redis` ..."""
    is_local: bool
    """True: `contains` answers at once from an index in memory, so the scheduler may call it. Other
    tiers are called on a thread of the store and may take as long as their timeout."""

    @abstractmethod
    def contains(self, keys: Sequence[ChunkKey]) -> list[bool]:
        """Whether each chunk is present. It may be gone when it is read. Raises TierError.

        Keys come in the order of the prompt. Present chunks count as used, the first one most
        recently: later chunks of a prefix are evicted before earlier ones.
        """

    def find(self, keys: Sequence[ChunkKey]) -> list[bool]:
        """Whether each chunk is present; also finds chunks that other processes have just written.
        May take as long as a read. Raises TierError."""
        return self.contains(keys)

    @abstractmethod
    def read(self, key: ChunkKey, max_bytes: int) -> Buffer | None:
        """Return the chunk as it was written; None if it is missing. A chunk longer than
        `max_bytes` is not read but dropped, and None is returned. Raises TierError."""

    def read_into(self, key: ChunkKey, max_bytes: int, into: memoryview) -> Buffer | None:
        """Read a chunk like `read`. A tier may read into `into`, which is page-aligned and has at
        least `max_bytes`, and then returns a part of it."""
        del into
        return self.read(key, max_bytes)

    @abstractmethod
    def write(self, key: ChunkKey, parts: Sequence[Buffer]) -> None:
        """Store a chunk atomically, and evict others if room is needed. An existing chunk is kept.
        Raises TierError."""

    @abstractmethod
    def delete(self, key: ChunkKey) -> None:
        """Delete a chunk if it exists. Raises TierError."""

    def pin(self, key: ChunkKey) -> None:  # noqa: B027
        """Never drop the chunk in this process until it is unpinned as often as it was pinned. Does
        nothing in a tier that does its own eviction."""

    def unpin(self, key: ChunkKey) -> None:  # noqa: B027
        """Undo one `pin`."""

    def watch(self, tell: TierWatcher) -> None:  # noqa: B027
        """Report present chunks to `tell`, and later every stored or dropped one. Called once,
        before any other method. Does nothing in a tier that is not local, because it does not know
        its contents."""

    def clear(self, folder: str | None = None) -> None:  # noqa: B027
        """Delete every chunk, or those of one `ChunkKey.folder`, including pinned ones and their
        pins. Does nothing in a tier that is not local, because others use it. Raises TierError."""

    def num_chunks(self, folder: str | None = None) -> int:
        """Number of chunks that `clear` would drop."""
        del folder
        return 0

    @abstractmethod
    def usage(self) -> TierUsage:
        """Return the usage that is known without a query to a server."""

    @abstractmethod
    def close(self) -> None:
        """Release all resources. Idempotent."""


def usage_of(tiers: list[Tier]) -> list[dict[str, object]]:
    """Return the usage of each tier."""
    found = []
    for tier in tiers:
        usage = tier.usage()
        found.append(
            {
                "tier": tier.name,
                "chunks": usage.num_chunks,
                "bytes": usage.num_bytes,
                "max_bytes": usage.max_bytes,
            }
        )
    return found
