"""Finds the longest cached prefix of a request. Every group must have the blocks that the token
after the prefix attends to.

Called by `KVCacheManager`. No side effect.
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.config.kv_groups import KVGroup
from quire.errors import IntegrityError
from quire.kvcache.block_pool import BlockPool
from quire.kvcache.sequence import CachedPrefix


def find_prefix(
    pool: BlockPool, groups: Sequence[KVGroup], keys: Sequence[bytes], block_size: int
) -> CachedPrefix:
    """The longest cached prefix of the blocks with these hashes."""
    end, num_agreed, index = len(keys), 0, 0
    while num_agreed < len(groups):

        def is_cached(entry: int, index: int = index) -> bool:
            return pool.lookup((index, keys[entry])) is not None

        found = groups[index].longest_hit(is_cached, end, block_size)
        num_agreed = num_agreed + 1 if found == end else 1
        end, index = found, (index + 1) % len(groups)
    firsts = [group.first_entry(end * block_size, block_size) for group in groups]
    tables = [_blocks(pool, index, keys[first:end]) for index, first in enumerate(firsts)]
    return CachedPrefix(end, tables)


def _blocks(pool: BlockPool, index: int, keys: Sequence[bytes]) -> list[int]:
    """The blocks of group `index` with these hashes, which are all cached."""
    found = [pool.lookup((index, key)) for key in keys]
    blocks = [block_id for block_id in found if block_id is not None]
    if len(blocks) < len(found):
        raise IntegrityError(f"group {index} lacks blocks of a cached prefix")
    return blocks
