"""The invariants of block tables, checked by the tests after every step. No side effect."""

from __future__ import annotations

from collections.abc import Iterable

from quire.config.kv_layout import KVLayout
from quire.errors import IntegrityError
from quire.kvcache.block_pool import BlockPool
from quire.kvcache.sequence import SequenceBlocks


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
