"""`TierEvents`: publishes KV events for chunks that the tiers of the KV store keep and drop.

As in vLLM for offloaded chunks, an event has the hash of the chunk's last block and no tokens: the
block pool has already published which tokens lie before that block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from quire.kvstore.chunks import parse_chunk_name
from quire.kvstore.tiers.base import Tier, TierWatcher
from quire.protocol.kv_events import (
    MEMORY,
    STORAGE,
    BlockHash,
    BlockRemoved,
    BlockStored,
    KVEvent,
    event_hash,
)

_PIECE = 1024
"""Maximum number of chunks per event batch."""


class TierEvents:
    """Publisher of the tiers' events. Safe for threads."""

    def __init__(self, publish: Callable[[list[KVEvent]], None], *, as_int: bool = True) -> None:
        """`as_int`: publish hashes as 64-bit integers."""
        self._publish = publish
        self._as_int = as_int

    def watcher(self, tier: Tier) -> TierWatcher:
        """Return a callback that publishes the events of one tier."""
        medium = MEMORY if tier.name == "memory" else STORAGE
        locality = "LOCAL" if tier.is_local else "REMOTE"

        def tell(names: Iterable[str], is_stored: bool) -> None:
            chunks = [parse_chunk_name(name) for name in names]
            for start in range(0, len(chunks), _PIECE):
                piece = chunks[start : start + _PIECE]
                make = self._stored if is_stored else self._removed
                self._publish(make(piece, medium, locality, tier.name))

        return tell

    def _stored(
        self, chunks: Sequence[tuple[bytes, int]], medium: str, locality: str, tier: str
    ) -> list[KVEvent]:
        return [
            BlockStored(
                block_hashes=[self._hash(digest)],
                parent_block_hash=None,
                token_ids=[],
                block_size=0,
                lora_id=None,
                medium=medium,
                lora_name=None,
                group_idx=group,
                locality=locality,
                ownership=tier,
            )
            for digest, group in chunks
        ]

    def _removed(
        self, chunks: Sequence[tuple[bytes, int]], medium: str, locality: str, tier: str
    ) -> list[KVEvent]:
        by_group: dict[int, list[BlockHash]] = {}
        for digest, group in chunks:
            by_group.setdefault(group, []).append(self._hash(digest))
        return [
            BlockRemoved(
                block_hashes=hashes,
                medium=medium,
                group_idx=group,
                locality=locality,
                ownership=tier,
            )
            for group, hashes in by_group.items()
        ]

    def _hash(self, digest: bytes) -> BlockHash:
        return event_hash(digest, as_int=self._as_int)
