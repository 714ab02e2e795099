"""Finds the longest cached prefix of a request: every group must have what the next token sees.

Called by `KVCacheManager`. No side effect.
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.config.kv_groups import KVGroupSpec
from quire.kvcache.block_pool import BlockPool
from quire.kvcache.sequence import CachedPrefix


def find_prefix(
    pool: BlockPool, groups: Sequence[KVGroupSpec], keys: Sequence[bytes], block_size: int
) -> CachedPrefix:
    """The longest cached prefix of the blocks with these hashes."""
    tables: list[list[int]] = [[] for _ in groups]
    end = len(keys)
    for index, group in enumerate(groups):
        if group.window is None:
            tables[index] = _leading(pool, index, keys[:end])
            end = len(tables[index])
    windows = [(index, group) for index, group in enumerate(groups) if group.window is not None]
    # A missing block is also missing for every shorter prefix that ends after it.
    while (gap := _first_gap(pool, windows, keys, end, block_size)) is not None:
        end = gap
    for index, group in enumerate(groups):
        if group.window is None:
            del tables[index][end:]
        else:
            seen = keys[group.first_entry(end * block_size, block_size) : end]
            tables[index] = _leading(pool, index, seen)
    return CachedPrefix(end, tables)


def _leading(pool: BlockPool, index: int, keys: Sequence[bytes]) -> list[int]:
    """The blocks of group `index` with these hashes, up to the first that is not cached."""
    found = []
    for key in keys:
        block_id = pool.lookup((index, key))
        if block_id is None:
            break
        found.append(block_id)
    return found


def _first_gap(
    pool: BlockPool,
    windows: Sequence[tuple[int, KVGroupSpec]],
    keys: Sequence[bytes],
    end: int,
    block_size: int,
) -> int | None:
    """The first missing entry of those that a token after `end` entries sees; None if none."""
    for index, group in windows:
        first = group.first_entry(end * block_size, block_size)
        num_found = len(_leading(pool, index, keys[first:end]))
        if num_found < end - first:
            return first + num_found
    return None
