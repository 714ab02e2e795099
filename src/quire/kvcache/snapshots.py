"""`Snapshots`: copies of recurrent states in the block pool, from which requests continue.

Called by `KVCacheManager`, if the model has recurrent layers. A state is that of the last multiple
of `STATE_CHUNK` tokens, so a step need not end exactly where a snapshot is wanted: at most
`STATE_CHUNK` - 1 tokens later. Blocks are copied by the plan that computes the request's next
tokens, before anything else in it.

A request takes a snapshot at the end of its prompt, where its prompt leaves those of other
requests, and every `interval` tokens. When it gives its blocks back, they become a snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import lcm

from quire.config.kv_layout import KVLayout
from quire.config.state_groups import SNAPSHOT_TOKENS, STATE_CHUNK, StateGroup
from quire.kvcache.block_pool import BlockKey, BlockPool
from quire.kvcache.sequence import CachedPrefix, SequenceBlocks

SnapshotTaken = Callable[[SequenceBlocks, int, list[int]], None]
"""Arguments: a request's block tables, a number of full blocks, and the blocks of the snapshot of
the state after these. The snapshot's blocks do not change until they are reused."""

_NUMBER_BYTES = 4
"""Bytes of a block's number in its key."""


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """Blocks to be copied: each source to the target at the same place."""

    sources: list[int]
    targets: list[int]


class Snapshots:
    """The snapshots of one `StateGroup`. Owned by the engine's thread."""

    def __init__(self, pool: BlockPool, layout: KVLayout, block_size: int) -> None:
        [group] = layout.states
        self.group: StateGroup = group
        self.index = layout.groups.index(group)
        self.taken: SnapshotTaken | None = None
        """Called for each snapshot once its blocks hold the state."""
        self.copies: list[BlockCopy] = []
        """Copies that the next plan must make, in this order."""
        self._pool = pool
        self._block_size = block_size
        self._unit = lcm(block_size, STATE_CHUNK)
        per_entry = len(layout.groups) - 1
        balanced = group.num_blocks // per_entry * block_size if per_entry else 0
        self.interval = max(SNAPSHOT_TOKENS, balanced)
        """Snapshots take no more blocks than the K and V of the tokens between them."""

    def keys(self, digest: bytes) -> list[BlockKey]:
        """The keys of the blocks of the snapshot after the tokens with this hash."""
        return [
            (self.index, digest + number.to_bytes(_NUMBER_BYTES, "little"))
            for number in range(self.group.num_blocks)
        ]

    def find(self, digest: bytes) -> list[int]:
        """The blocks of a snapshot; empty unless all are cached."""
        found = []
        for key in self.keys(digest):
            block_id = self._pool.lookup(key)
            if block_id is None:
                return []
            found.append(block_id)
        return found

    def drop(self, digest: bytes) -> None:
        """Removes what there is of a snapshot from the prefix cache."""
        for key in self.keys(digest):
            block_id = self._pool.lookup(key)
            if block_id is not None:
                self._pool.unregister(block_id)

    def positions(self, num_tokens: int, num_shared: int) -> list[int]:
        """Positions at which a request with these tokens should take snapshots: after the
        `num_shared` tokens that others had before it, and before the last token, which is computed
        again after a prefix hit."""
        places = {end // self._unit * self._unit for end in (num_shared, num_tokens - 1)}
        return sorted(places - {0})

    def within(self, blocks: SequenceBlocks, num_computed: int, count: int) -> int:
        """Number of the next `count` tokens that a step may compute so that the next snapshot can
        be taken after it."""
        for position in blocks.snapshots:
            latest = position + STATE_CHUNK - 1
            if num_computed < position:
                return min(count, latest - num_computed)
        return count

    @staticmethod
    def most_drafts(num_tokens: int, count: int) -> int:
        """See `KVCacheManager.most_drafts`. The last row of a chunk updates the state, so it must
        not be a draft."""
        return min(count, STATE_CHUNK - 1 - num_tokens % STATE_CHUNK)

    def take(
        self, blocks: SequenceBlocks, keys: Sequence[bytes], num_computed: int, room: int
    ) -> None:
        """Copies a request's state before its next step, if there is room: `room` blocks that the
        request does not need. `keys`: those of its first `num_computed` tokens."""
        blocks.snapshots = [one for one in blocks.snapshots if one > num_computed]
        position = num_computed // STATE_CHUNK * STATE_CHUNK
        entries, rest = divmod(position, self._block_size)
        due = num_computed + self.interval
        blocks.snapshot_due = min([due, *blocks.snapshots])
        count = self.group.num_blocks
        if rest or not 0 < entries <= len(keys) or count > room:
            return
        if self.find(keys[entries - 1]):
            return
        targets = self._pool.allocate(count)
        self._register(keys[entries - 1], targets)
        self._copy(blocks, blocks.tables[self.index].copy(), targets, num_computed)
        blocks.new_snapshot += targets
        blocks.copying += targets

    def placed(
        self,
        prefix: CachedPrefix,
        num_tokens: int,
        num_free_after: Callable[[int, CachedPrefix], int],
    ) -> CachedPrefix:
        """The prefix with the places of snapshots. Without room for a copy of its state the request
        takes over the snapshot, unless that is being copied. `num_free_after`: that of the
        manager."""
        start, shared = prefix.num_entries * self._block_size, sum(prefix.snapshots)
        places = self.positions(num_tokens, shared)
        prefix = replace(prefix, snapshots=[place for place in places if place > start])
        is_free = self._pool.num_revived_by(prefix.state) == len(prefix.state)
        if prefix.state and is_free and num_free_after(num_tokens, prefix) < 0:
            tables = prefix.tables.copy()
            tables[self.index] = prefix.state
            prefix = replace(prefix, tables=tables, state=[], takes_state=True)
        return prefix

    def hold(self, blocks: SequenceBlocks, prefix: CachedPrefix, *, is_taking: bool) -> None:
        """Holds the snapshot to copy, or makes it the request's own state. `is_taking`: the request
        takes snapshots."""
        self._pool.hold(prefix.state)
        blocks.source = prefix.state.copy()
        if prefix.takes_state:
            for block_id in prefix.tables[self.index]:
                self._pool.take_over(block_id)
        if is_taking:
            blocks.snapshots = prefix.snapshots
            start = prefix.num_entries * self._block_size
            blocks.snapshot_due = min([start + self.interval, *prefix.snapshots])

    def begin(self, blocks: SequenceBlocks, num_computed: int) -> None:
        """A request that starts has its blocks: they get the state of its prefix hit."""
        source, blocks.source = blocks.source, []
        self._copy(blocks, source, blocks.tables[self.index].copy(), num_computed)
        blocks.copying += source

    def _copy(
        self, blocks: SequenceBlocks, sources: list[int], targets: list[int], num_computed: int
    ) -> None:
        """The blocks stay as they are until the plan that copies is collected."""
        self.copies.append(BlockCopy(sources, targets))
        blocks.copied_at = num_computed
        blocks.due = 0

    def settle(self, blocks: SequenceBlocks, num_collected: int) -> None:
        """So many tokens are computed: copies made before the last of them are done."""
        if blocks.copying and num_collected > blocks.copied_at:
            self._report(blocks)
            self._pool.release(blocks.copying)
            blocks.copying, blocks.new_snapshot = [], []

    def _report(self, blocks: SequenceBlocks) -> None:
        """Calls `taken` for the snapshots that were just copied."""
        if self.taken is None:
            return
        count = self.group.num_blocks
        for start in range(0, len(blocks.new_snapshot), count):
            block_ids = blocks.new_snapshot[start : start + count]
            key = self._pool.key_of(block_ids[0])
            if key is not None:  # otherwise it was dropped in the meantime
                end = blocks.keys.index(key[1][:-_NUMBER_BYTES]) + 1
                self.taken(blocks, end, block_ids)

    def withdraw(self, blocks: SequenceBlocks) -> None:
        """The plan that copies was not computed: the snapshot holds nothing."""
        for block_id in blocks.new_snapshot:
            self._pool.unregister(block_id)
        blocks.new_snapshot = []

    def keep(
        self, blocks: SequenceBlocks, keys: Sequence[bytes], num_collected: int, num_computed: int
    ) -> None:
        """A request is about to give its blocks back: they are a snapshot, if it is known of which
        tokens. `num_computed`: tokens that were computed, those too whose results are void."""
        position = num_collected // STATE_CHUNK * STATE_CHUNK
        entries, rest = divmod(position, self._block_size)
        table = blocks.tables[self.index]
        is_ahead = num_computed // STATE_CHUNK > num_collected // STATE_CHUNK
        if rest or is_ahead or not table or not 0 < entries <= len(keys) or blocks.is_unknown:
            return
        if not self.find(keys[entries - 1]):
            self._register(keys[entries - 1], table)
            if self.taken is not None:
                self.taken(blocks, entries, table.copy())

    def _register(self, digest: bytes, block_ids: Sequence[int]) -> None:
        self.drop(digest)  # some blocks of an older one may be left
        for block_id, key in zip(block_ids, self.keys(digest), strict=True):
            self._pool.register(block_id, key)
