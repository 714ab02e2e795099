"""`Tier`: the contract of a place that keeps chunks.

Called by `KVStore` from its own threads, several at once. A tier may lose anything at any time. It
stores what it is given and knows nothing of tokens, requests or models.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from quire.kvstore.chunks import ChunkKey

Buffer = bytes | bytearray | memoryview

TierWatcher = Callable[[Iterable[str], bool], None]
"""Is told the names of chunks (`ChunkKey.name`) that a tier has from now on (True), or has no more
(False). Returns at once; called from any thread."""


class TierError(Exception):
    """A tier cannot do what it was asked: a full disk, a lost connection, wrong rights.

    A chunk that is not there is no error.
    """


@dataclass(frozen=True, slots=True)
class TierUsage:
    """What a tier holds."""

    num_chunks: int
    num_bytes: int
    max_bytes: int | None
    """None: the place has bounds of its own."""


class Tier(ABC):
    """Keeps encoded chunks (`chunk_file`). Safe to call from several threads."""

    name: str
    """In metrics and messages: `memory`, `disk`, `redis` ..."""
    is_local: bool
    """`contains` answers at once, from an index in memory: a scheduler may ask. A tier that is not
    local is asked on a thread of the store's, and may take as long as its timeout."""

    @abstractmethod
    def contains(self, keys: Sequence[ChunkKey]) -> list[bool]:
        """Whether each is there. It may be gone when it is read. Raises TierError.

        Keys come in the order of the prompt. Those that are there count as used, the first one
        last: where chunks have to go, those behind them go before."""

    def find(self, keys: Sequence[ChunkKey]) -> list[bool]:
        """As `contains`, and looks for what others may have written just now. It may take as long
        as a read does. Raises TierError."""
        return self.contains(keys)

    @abstractmethod
    def read(self, key: ChunkKey, max_bytes: int) -> Buffer | None:
        """The chunk as it was written; None: it is not there. One that is longer than `max_bytes`
        is not read: None, and it is dropped. Raises TierError."""

    def read_into(self, key: ChunkKey, max_bytes: int, into: memoryview) -> Buffer | None:
        """As `read`. A tier may read into this memory, which has at least `max_bytes` and begins
        with a page, and then returns a part of it."""
        del into
        return self.read(key, max_bytes)

    @abstractmethod
    def write(self, key: ChunkKey, parts: Sequence[Buffer]) -> None:
        """Stores a chunk, which appears whole or not at all, and drops others where that needs
        room. One that is there already stays. Raises TierError."""

    @abstractmethod
    def delete(self, key: ChunkKey) -> None:
        """Drops a chunk, whether it is there or not. Raises TierError."""

    def pin(self, key: ChunkKey) -> None:  # noqa: B027
        """This process never drops the chunk, until it is unpinned as often. Nothing happens in a
        tier that decides on its own what it drops."""

    def unpin(self, key: ChunkKey) -> None:  # noqa: B027
        """Undoes `pin`."""

    def watch(self, tell: TierWatcher) -> None:  # noqa: B027
        """Tells what is there, and from then on what comes and goes. Once, before anything else.
        A tier that is not local does not know it, and tells nothing."""

    def clear(self, folder: str | None = None) -> None:  # noqa: B027
        """Drops every chunk, or those of one `ChunkKey.folder`, pinned ones too, and their pins.
        Nothing happens in a tier that is not local: others use it. Raises TierError."""

    def num_chunks(self, folder: str | None = None) -> int:
        """How many chunks `clear` would drop."""
        del folder
        return 0

    @abstractmethod
    def usage(self) -> TierUsage:
        """What it holds, as far as it is known without asking others."""

    @abstractmethod
    def close(self) -> None:
        """Gives everything back. Idempotent."""
