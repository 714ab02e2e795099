"""The invariants of the pool and of block tables, checked by the tests after every step. No side
effect."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from quire.config.kv_layout import KVLayout
from quire.errors import IntegrityError
from quire.kvcache.block_pool import BlockPool
from quire.kvcache.sequence import SequenceBlocks


def check_blocks(pool: BlockPool, tables: Iterable[Sequence[int]]) -> None:
    """Raises IntegrityError unless reference counts match and every block is in one state.

    `tables`: the block tables of all requests that hold blocks.
    """
    holders = [0] * len(pool._ref_counts)
    for table in tables:
        for block_id in table:
            holders[block_id] += 1
    if holders != pool._ref_counts:
        wrong = [i for i, count in enumerate(holders) if count != pool._ref_counts[i]]
        raise IntegrityError(f"counts and holders disagree for blocks {wrong[:8]}")
    empty = set(pool._empty)
    for block_id, count in enumerate(pool._ref_counts):
        in_cached, in_empty = block_id in pool._cached, block_id in empty
        has_key = pool._keys[block_id] is not None
        if (in_cached, in_empty) != (count == 0 and has_key, count == 0 and not has_key):
            raise IntegrityError(f"block {block_id}: {count=} {has_key=} {in_cached=} {in_empty=}")
    if len(empty) != len(pool._empty) or pool.num_free + pool.num_held != pool.num_blocks:
        raise IntegrityError("free + held blocks do not add up to the pool")
    if len(pool._ref_counts) > pool.num_blocks:
        raise IntegrityError("more blocks in use than there are")
    registered = {key: i for i, key in enumerate(pool._keys) if key is not None}
    if registered != pool._by_key:
        raise IntegrityError("the prefix map and the blocks' keys disagree")


def check_tables(pool: BlockPool, layout: KVLayout, sequences: Iterable[SequenceBlocks]) -> None:
    """Raises IntegrityError unless groups that keep all hold every entry, and every registered
    block has the key of its group and tokens."""
    for blocks in sequences:
        for index, group in enumerate(layout.groups):
            first, table = blocks.first_entries[index], blocks.tables[index]
            if first and group.keeps_all:
                raise IntegrityError(f"group {index} keeps all blocks but begins at entry {first}")
            if group.is_by_position and first + len(table) < blocks.num_registered:
                raise IntegrityError(f"group {index} ends before entries that are registered")
            for entry, block_id in enumerate(table, start=first):
                is_registered = entry < blocks.num_registered and group.is_by_position
                wanted = (index, blocks.keys[entry]) if is_registered else None
                if pool.key_of(block_id) not in (None, wanted):
                    raise IntegrityError(f"block {block_id} has the key of other tokens")
