"""`KVCacheManager`: gives requests their KV blocks and finds the prefixes that are cached.

Called by the scheduler, which passes each request's `SequenceBlocks` and token ids.
Does not know priorities, budgets or states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from quire.config.records import CacheConfig
from quire.errors import IntegrityError
from quire.kvcache.block_pool import BlockPool
from quire.kvcache.integrity import check_blocks, check_tables
from quire.kvcache.prefix_search import find_prefix
from quire.kvcache.reservations import Reservations
from quire.kvcache.sequence import (
    CachedPrefix,
    SequenceBlocks,
    hash_blocks,
    model_root,
    request_root,
    request_roots,
)
from quire.kvcache.snapshots import BlockCopy, Snapshots
from quire.kvcache.tail import Tail, tail_of
from quire.protocol.cache_scope import EVERYONE, CacheScope
from quire.protocol.input_rows import InputRows

if TYPE_CHECKING:
    from quire.adapters.request import LoRARequest


class KVCacheManager:
    """Block tables over one `BlockPool`. Invariant: `check_integrity`. One thread, the engine's.

    A block is registered in the prefix cache when its last token is scheduled, before its K/V is
    computed. A step writes all its K/V of a layer before any of its tokens attends to it, so a
    request may share blocks with one that is computed in the same step. `free` removes the keys of
    blocks that were never computed.

    The kind of a layer group (`config.kv_groups`) decides how its tables grow, which blocks it
    releases, and which prefixes it finds.
    Released blocks stay in the prefix cache until they are reused.
    """

    def __init__(self, config: CacheConfig, max_chunk: int) -> None:
        """`max_chunk`: the most tokens of one request that a step computes."""
        self.block_size = config.block_size
        self.layout = config.layout
        self.enable_caching = config.enable_prefix_caching
        self.pool = BlockPool(config.num_blocks, config.most_cached_blocks)
        self.max_chunk = max_chunk
        self._kv_cache_dtype = config.kv_cache_dtype
        self._root = model_root(config.fingerprint, config.block_size, config.kv_cache_dtype)
        self._sequences: dict[int, SequenceBlocks] = {}
        groups = enumerate(config.layout.groups)
        self._releasing = [(index, group) for index, group in groups if not group.keeps_all]
        """Groups that release blocks while the request runs."""
        groups = enumerate(config.layout.groups)
        self._offered = [index for index, group in groups if group.is_by_position]
        """Groups whose full blocks are offered to the prefix cache."""
        self.reservations = Reservations(self.pool, self._offered)
        self.snapshots: Snapshots | None = None
        """Snapshots of states, if the model has recurrent layers."""
        if config.layout.states:
            self.snapshots = Snapshots(self.pool, config.layout, config.block_size)

    @property
    def usage(self) -> float:
        """Share of the pool that requests hold, 0 to 1."""
        return self.pool.num_held / self.pool.num_blocks

    def open(
        self,
        scope: CacheScope = EVERYONE,
        adapter: str = "",
        input_rows: Sequence[InputRows] = (),
        lora: LoRARequest | None = None,
    ) -> SequenceBlocks:
        """Empty block tables for a request. Requests share blocks only if their scopes, the digests
        of their adapters, and the rows given for these blocks and earlier ones are equal. `lora`:
        the adapter of that digest, for KV events."""
        namespace, root = request_roots(self._root, scope)
        root = request_root(root, adapter_digest=bytes.fromhex(adapter))
        num_groups = len(self.layout.groups)
        return SequenceBlocks(root, num_groups, namespace, scope, input_rows, lora)

    def use_fingerprint(self, fingerprint: str) -> bool:
        """Sets the fingerprint of the model that computes K/V from now on. Returns whether it has
        changed: then the prefix cache is empty, and every request must be opened again. Raises
        IntegrityError while requests hold blocks."""
        root = model_root(fingerprint, self.block_size, self._kv_cache_dtype)
        if root == self._root:
            return False
        if not self.pool.forget_cached():
            raise IntegrityError("the model changes while requests hold K/V of the previous model")
        self._root = root
        return True

    def longest(self, limit: int) -> int:
        """The most tokens, up to `limit`, that a request can have if it runs alone."""
        return self.layout.longest(self.pool.num_blocks, limit, self.max_chunk, self.block_size)

    def no_prefix(self) -> CachedPrefix:
        """An empty prefix."""
        return CachedPrefix(0, [[] for _ in self.layout.groups], [0] * len(self.layout.groups))

    def get_computed_blocks(
        self, blocks: SequenceBlocks, token_ids: Sequence[int], *, with_tail: bool = False
    ) -> CachedPrefix:
        """The cached blocks of the longest prefix of `token_ids`, without the last token, because
        its logits must be computed. Adds no references. `with_tail`: includes the tail after
        the full blocks, if it was loaded."""
        if not self.enable_caching:
            return self.no_prefix()
        last = (len(token_ids) - 1) // self.block_size
        self._extend_keys(blocks, token_ids, last)
        prefix = find_prefix(
            self.pool, self.layout.groups, blocks.keys[:last], self.block_size, self.snapshots
        )
        if self.snapshots is not None:
            return self.snapshots.placed(prefix, len(token_ids), self.num_free_after)
        tail = self.tail_of(blocks, token_ids, len(token_ids)) if with_tail else None
        if tail is None or prefix.num_entries < last:
            return prefix
        cached = tail.cached(self.pool, len(self.layout.groups))
        return replace(prefix, tail=cached, num_tail_tokens=tail.num_tokens) if cached else prefix

    def within_snapshot(self, blocks: SequenceBlocks, num_computed: int, count: int) -> int:
        """Number of the next `count` tokens that a step may compute, so that a snapshot of the
        state can be taken at a wanted position."""
        if self.snapshots is None:
            return count
        return self.snapshots.within(blocks, num_computed, count)

    def most_drafts(self, blocks: SequenceBlocks, num_tokens: int, count: int) -> int:
        """Number of `count` draft tokens that a step may compute after the `num_tokens` of a
        request, so that rejected ones can be taken back. None if that needs more than the free
        blocks: no request is preempted for a guess."""
        if self.snapshots is not None:
            count = self.snapshots.most_drafts(num_tokens, count)
        num_added = sum(self._num_to_add(blocks, num_tokens + count))
        return count if num_added <= self.pool.num_free else 0

    def take_snapshot(
        self, blocks: SequenceBlocks, token_ids: Sequence[int], num_computed: int
    ) -> None:
        """Takes a snapshot of the state of a request with `num_computed` planned tokens, if there
        is room."""
        if self.snapshots is not None:
            num_full = min(num_computed, len(token_ids)) // self.block_size
            keys = self.keys_of(blocks, token_ids, num_full)
            room = self.pool.num_free - self.num_missing(blocks, len(token_ids) + self.block_size)
            self.snapshots.take(blocks, keys, num_computed, room)

    def take_copies(self) -> list[BlockCopy]:
        """Return the copies that the plan must make before it computes, and forget them."""
        if self.snapshots is None or not self.snapshots.copies:
            return []
        copies, self.snapshots.copies = self.snapshots.copies, []
        return copies

    def tail_of(
        self, blocks: SequenceBlocks, token_ids: Sequence[int], num_tokens: int
    ) -> Tail | None:
        """The tail of the first `num_tokens` tokens of a request; None if they have none, or if the
        model has recurrent layers."""
        if self.snapshots is not None:
            return None  # a state is known after full blocks only
        keys = self.keys_of(blocks, token_ids, (num_tokens - 1) // self.block_size)
        parent = keys[-1] if keys else blocks.root
        return tail_of(parent, token_ids, num_tokens, self.block_size, blocks.input_rows)

    def num_free_after(self, num_tokens: int, prefix: CachedPrefix) -> int:
        """Free blocks if a new request took `prefix` and the most blocks that it needs at once to
        compute the rest of `num_tokens`; may be negative."""
        revived = sum(map(self.pool.num_revived_by, [*prefix.tables, prefix.state]))
        missing = self._num_missing(num_tokens, prefix.first_entries, prefix.tables)
        return self.pool.num_free - revived - missing

    def num_missing(self, blocks: SequenceBlocks, num_tokens: int) -> int:
        """The most further blocks that a request needs to compute the rest of `num_tokens`."""
        if not any(self._num_to_add(blocks, num_tokens)):
            return 0
        return self._num_missing(num_tokens, blocks.first_entries, blocks.tables)

    def take_hits(self, blocks: SequenceBlocks, prefix: CachedPrefix) -> None:
        """Begins empty tables with cached blocks. Blocks of a tail lose their keys, because the
        request writes to them."""
        if blocks.num_held or any(blocks.first_entries):
            raise IntegrityError("take_hits needs empty block tables")
        for table, block_ids in zip(blocks.tables, prefix.tables, strict=True):
            self.pool.hold(block_ids)
            table.extend(block_ids)
        self.pool.hold(prefix.tail)
        for table, block_id in zip(blocks.tables, prefix.tail, strict=False):  # may be empty
            self.pool.unregister(block_id)
            table.append(block_id)
        blocks.first_entries = prefix.first_entries.copy()
        blocks.num_registered = prefix.num_entries
        if self.snapshots is not None:
            self.snapshots.hold(blocks, prefix, is_taking=self.enable_caching)
        self._sequences[id(blocks)] = blocks

    def allocate_slots(
        self,
        blocks: SequenceBlocks,
        token_ids: Sequence[int],
        num_computed_tokens: int,
        num_tokens: int,
    ) -> list[list[int]] | None:
        """Allocates blocks for the first `num_tokens` of a request and registers their full blocks
        in the prefix cache, as far as `token_ids` are known. Blocks that no token after
        `num_computed_tokens` attends to are released first. Returns the blocks appended to each
        table, [] if none is needed; None, with no further change, if too few are free."""
        self.offer(blocks, token_ids, num_computed_tokens)
        self._give_back_unseen(blocks, num_computed_tokens)
        missing = self._num_to_add(blocks, num_tokens)
        if sum(missing) > self.pool.num_free:
            return None
        added: list[list[int]] = []
        if any(missing):
            self._sequences[id(blocks)] = blocks
            for table, count in zip(blocks.tables, missing, strict=True):
                added.append(self.pool.allocate(count))
                table += added[-1]
        self.offer(blocks, token_ids, num_tokens)
        blocks.due = self._next_due(blocks, num_tokens)
        if self.snapshots is not None and blocks.source:
            self.snapshots.begin(blocks, num_computed_tokens)
        return added

    def offer(self, blocks: SequenceBlocks, token_ids: Sequence[int], num_tokens: int) -> None:
        """Registers the full blocks of the first `num_tokens` in the prefix cache, as far as
        `token_ids` are known."""
        num_full = min(num_tokens, len(token_ids)) // self.block_size
        if self.enable_caching and num_full > blocks.num_registered:
            self._register(blocks, token_ids, num_full)

    def withdraw(self, blocks: SequenceBlocks, num_computed_tokens: int) -> None:
        """Removes the keys of blocks beyond `num_computed_tokens`, which a lost plan should have
        computed. The request keeps its blocks."""
        if self.snapshots is not None:
            self.snapshots.settle(blocks, num_computed_tokens)
            self.snapshots.withdraw(blocks)
            blocks.is_unknown = True
        self._withdraw_beyond(blocks, num_computed_tokens)

    def _withdraw_beyond(self, blocks: SequenceBlocks, num_computed_tokens: int) -> None:
        num_valid = num_computed_tokens // self.block_size
        for entry in range(num_valid, blocks.num_registered):
            self._withdraw(blocks, entry)
        blocks.num_registered = min(blocks.num_registered, num_valid)

    def offer_state(
        self,
        blocks: SequenceBlocks,
        token_ids: Sequence[int],
        num_collected: int,
        num_computed: int,
    ) -> None:
        """Offers the state of a request that is about to give its blocks back, as a snapshot."""
        if self.snapshots is not None and self.enable_caching:
            keys = self.keys_of(blocks, token_ids, num_collected // self.block_size)
            self.snapshots.keep(blocks, keys, num_collected, num_computed)

    def free(self, blocks: SequenceBlocks, num_computed_tokens: int) -> None:
        """Releases all blocks, the last ones first, so that they are reused before the first ones.

        Blocks beyond `num_computed_tokens` are not computed and lose their keys.
        """
        self._withdraw_beyond(blocks, num_computed_tokens)
        if self.snapshots is not None:
            self.snapshots.settle(blocks, num_computed_tokens)
            self.snapshots.withdraw(blocks)
            self.pool.release([*blocks.source, *blocks.copying])
        self.pool.release(blocks.tail_first())
        blocks.clear()
        self._sequences.pop(id(blocks), None)

    def forget(self, blocks: SequenceBlocks, tail: Tail | None = None) -> None:
        """Removes the keys of these blocks, and of a tail, from the prefix cache, because their K/V
        may be invalid. The request keeps its blocks."""
        for group in range(len(self.layout.groups)):
            for key in blocks.keys:
                self.pool.forget((group, key))
            if tail is not None:
                self.pool.forget(tail.key(group))
        if self.snapshots is not None:
            for key in blocks.keys:
                self.snapshots.drop(key)

    def keys_of(
        self, blocks: SequenceBlocks, token_ids: Sequence[int], num_entries: int
    ) -> list[bytes]:
        """The hashes of the first full blocks of these tokens."""
        self._extend_keys(blocks, token_ids, num_entries)
        return blocks.keys[:num_entries]

    def reset_prefix_cache(self) -> bool:
        """Drops every cached block. Returns False and changes nothing while blocks are held."""
        return self.pool.forget_cached()

    def check_integrity(self) -> None:
        """Raises IntegrityError if a count, a state or a key is wrong. O(blocks in use)."""
        sequences = self._sequences.values()
        tables = [
            table
            for blocks in sequences
            for table in (*blocks.tables, blocks.source, blocks.copying)
        ]
        check_blocks(self.pool, [*tables, *self.reservations.held])
        check_tables(self.pool, self.layout, sequences)

    def _num_to_add(self, blocks: SequenceBlocks, num_tokens: int) -> list[int]:
        """For each group, the number of entries that its table needs more for `num_tokens`."""
        return [
            max(0, group.num_entries(num_tokens, self.block_size) - first - len(table))
            for group, first, table in zip(
                self.layout.groups, blocks.first_entries, blocks.tables, strict=True
            )
        ]

    def _num_missing(
        self, num_tokens: int, first_entries: list[int], tables: list[list[int]]
    ) -> int:
        size, chunk = self.block_size, self.max_chunk
        return sum(
            max(0, group.most_blocks(num_tokens - first * size, chunk, size) - len(table))
            for group, first, table in zip(self.layout.groups, first_entries, tables, strict=True)
        )

    def _give_back_unseen(self, blocks: SequenceBlocks, num_computed_tokens: int) -> None:
        """Releases the blocks that neither the next token nor any later one attends to."""
        if self.snapshots is not None:
            self.snapshots.settle(blocks, num_computed_tokens)
        for index, group in self._releasing:
            first = group.first_entry(num_computed_tokens, self.block_size)
            count = first - blocks.first_entries[index]
            if count > 0:
                table = blocks.tables[index]
                self.pool.release(table[:count])
                del table[:count]
                blocks.first_entries[index] = first

    def _next_due(self, blocks: SequenceBlocks, num_tokens: int) -> int:
        """The next number of tokens at which a block begins, is filled, or can be released. While
        not all tokens of a full block are known, it is the next token."""
        size = self.block_size
        due = -(-num_tokens // size) * size
        if (
            due == num_tokens
            or blocks.copying
            or (blocks.num_registered < num_tokens // size and self.enable_caching)
        ):
            due = num_tokens + 1
        for index, group in self._releasing:
            release = group.release_due(blocks.first_entries[index], size)
            due = due if release is None else min(due, release)
        return due

    def _withdraw(self, blocks: SequenceBlocks, entry: int) -> None:
        """Drops the keys of an entry's blocks, including blocks that were released."""
        for index in self._offered:
            first = blocks.first_entries[index]
            block_id: int | None
            if entry >= first:
                block_id = blocks.tables[index][entry - first]
            else:
                block_id = self.pool.lookup((index, blocks.keys[entry]))
            if block_id is not None:
                self.pool.unregister(block_id)

    def _register(self, blocks: SequenceBlocks, token_ids: Sequence[int], num_full: int) -> None:
        self._extend_keys(blocks, token_ids, num_full)
        for index in self._offered:
            first, table = blocks.first_entries[index], blocks.tables[index]
            entries = range(blocks.num_registered, num_full)
            new = [
                entry
                for entry in entries
                if self.pool.register(table[entry - first], (index, blocks.keys[entry]))
            ]
            for listener in self.pool.events:
                listener.stored(blocks, token_ids, index, new)
        blocks.num_registered = num_full

    def _extend_keys(self, blocks: SequenceBlocks, token_ids: Sequence[int], count: int) -> None:
        keys, begin = blocks.keys, len(blocks.keys) * self.block_size
        new = token_ids[begin : count * self.block_size]
        parent = keys[-1] if keys else blocks.root
        keys += hash_blocks(parent, new, self.block_size, blocks.input_rows, begin)
