"""Listeners of the prefix cache: `BlockEvents` collects its KV events and publishes them in order;
`BlockReport` collects the keys of its blocks for the front ends.

`BlockPool` and `KVCacheManager` report blocks to them; the core flushes them after each step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from quire.config.kv_layout import KVLayout
from quire.kvcache.sequence import SequenceBlocks
from quire.protocol.block_changes import BlockChanges
from quire.protocol.input_rows import rows_within
from quire.protocol.kv_events import (
    POOL,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KVEvent,
    event_hash,
)


class BlockListener(Protocol):
    """Its methods are called on the engine's thread."""

    def stored(
        self, blocks: SequenceBlocks, token_ids: Sequence[int], group: int, entries: Sequence[int]
    ) -> None:
        """Blocks of a request were registered. `entries`: ascending table entries."""

    def removed(self, key: tuple[int, bytes]) -> None:
        """A block lost its key."""

    def cleared(self) -> None:
        """All blocks were dropped."""


class BlockReport(BlockListener):
    """The changes of one group of layers since they were taken last."""

    def __init__(self, group: int) -> None:
        self._group = group
        self._changes = BlockChanges()

    def stored(
        self, blocks: SequenceBlocks, token_ids: Sequence[int], group: int, entries: Sequence[int]
    ) -> None:
        del token_ids
        if group == self._group:
            self._changes.stored += [blocks.keys[entry] for entry in entries]

    def removed(self, key: tuple[int, bytes]) -> None:
        group, digest = key
        if group == self._group:
            self._changes.removed.append(digest)

    def cleared(self) -> None:
        self._changes = BlockChanges(is_cleared=True)

    def take(self) -> BlockChanges | None:
        """The changes, which are forgotten; None: there are none."""
        taken = self._changes
        if not (taken.stored or taken.removed or taken.is_cleared):
            return None
        self._changes = BlockChanges()
        return taken


class BlockEvents:
    """Owned by the engine's thread."""

    def __init__(
        self,
        layout: KVLayout,
        block_size: int,
        publish: Callable[[list[KVEvent]], None],
        *,
        as_int: bool = True,
    ) -> None:
        """`as_int`: hashes are sent as 64-bit integers."""
        self._groups = layout.groups
        self._block_size = block_size
        self._publish = publish
        self._as_int = as_int
        self._events: list[KVEvent] = []

    def stored(
        self, blocks: SequenceBlocks, token_ids: Sequence[int], group: int, entries: Sequence[int]
    ) -> None:
        """Records that blocks of a request were registered. `entries`: ascending table entries."""
        start = 0
        for at in range(1, len(entries) + 1):
            if at == len(entries) or entries[at] != entries[at - 1] + 1:
                self._run_stored(blocks, token_ids, group, entries[start], entries[at - 1] + 1)
                start = at

    def removed(self, key: tuple[int, bytes]) -> None:
        """Records that a block lost its key."""
        group, digest = key
        if group < 0 or not self._groups[group].is_by_position:
            return  # no event was sent for a tail or a snapshot
        last = self._events[-1] if self._events else None
        if not isinstance(last, BlockRemoved) or last.group_idx != group:
            last = BlockRemoved(block_hashes=[], medium=POOL, group_idx=group)
            self._events.append(last)
        last.block_hashes.append(event_hash(digest, as_int=self._as_int))

    def cleared(self) -> None:
        """Records that all blocks were dropped. Sent at once, because an idle engine runs no
        steps."""
        self._events.append(AllBlocksCleared())
        self.flush()

    def flush(self) -> None:
        """Publishes the collected events."""
        if self._events:
            self._publish(self._events)
            self._events = []

    def _run_stored(
        self, blocks: SequenceBlocks, token_ids: Sequence[int], group: int, first: int, end: int
    ) -> None:
        size, spec = self._block_size, self._groups[group]
        digests = blocks.keys[max(0, first - 1) : end]
        hashes = [event_hash(digest, as_int=self._as_int) for digest in digests]
        lora = blocks.lora
        self._events.append(
            BlockStored(
                block_hashes=hashes[1:] if first else hashes,
                parent_block_hash=hashes[0] if first else None,
                token_ids=list(token_ids[first * size : end * size]),
                block_size=size,
                lora_id=None if lora is None else lora.lora_int_id,
                medium=POOL,
                lora_name=None if lora is None else lora.lora_name,
                extra_keys=[_extra_keys(blocks, entry, size) for entry in range(first, end)],
                group_idx=group,
                kv_cache_spec_kind=spec.event_name,
                kv_cache_spec_sliding_window=spec.window,
            )
        )


def _extra_keys(blocks: SequenceBlocks, entry: int, size: int) -> list[Any] | None:
    """`BlockStored.extra_keys` of a block, in vLLM's order."""
    begin = entry * size
    keys: list[Any] = [] if blocks.lora is None else [blocks.lora.lora_name]
    for rows in rows_within(blocks.input_rows, begin, begin + size):
        keys.append((rows.digest.hex(), rows.first - begin))
    if entry == 0 and blocks.scope.salt is not None:
        keys.append(blocks.scope.salt)
    return keys or None
