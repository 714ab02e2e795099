"""Finds the longest cached prefix of a request. Every group must have the blocks that the token
after the prefix attends to.

Called by `KVCacheManager`. No side effect.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from quire.config.kv_groups import KVGroup
from quire.errors import IntegrityError
from quire.kvcache.block_pool import BlockPool
from quire.kvcache.sequence import CachedPrefix

if TYPE_CHECKING:
    from quire.kvcache.snapshots import Snapshots

Search = tuple[KVGroup, Callable[[bytes], bool]]
"""A group, and whether what it stores of the block with this hash is cached."""


def find_prefix(
    pool: BlockPool,
    groups: Sequence[KVGroup],
    keys: Sequence[bytes],
    block_size: int,
    snapshots: Snapshots | None = None,
) -> CachedPrefix:
    """The longest cached prefix of the blocks with these hashes."""
    of_blocks: list[Search] = [
        (group, partial(_is_cached, pool, index))
        for index, group in enumerate(groups)
        if group.is_by_position
    ]
    end = _agreed(of_blocks, keys, len(keys), block_size)
    wanted, state = [], []
    if snapshots is not None:
        wanted = [end * block_size] if of_blocks else []
        search: Search = (snapshots.group, lambda digest: bool(snapshots.find(digest)))
        end = _agreed([*of_blocks, search], keys, end, block_size)
        state = snapshots.find(keys[end - 1]) if end else []
    firsts = [group.first_entry(end * block_size, block_size) for group in groups]
    tables = [
        _blocks(pool, index, keys[first:end]) if group.is_by_position else []
        for index, (group, first) in enumerate(zip(groups, firsts, strict=True))
    ]
    return CachedPrefix(end, tables, firsts, state=state, snapshots=wanted)


def _agreed(searches: Sequence[Search], keys: Sequence[bytes], end: int, block_size: int) -> int:
    """The largest number of entries, at most `end`, that every group agrees on."""
    num_agreed, index = 0, 0
    while num_agreed < len(searches):
        group, is_cached = searches[index]
        found = group.longest_hit(lambda entry: is_cached(keys[entry]), end, block_size)  # noqa: B023
        num_agreed = num_agreed + 1 if found == end else 1
        end, index = found, (index + 1) % len(searches)
    return end


def _blocks(pool: BlockPool, index: int, keys: Sequence[bytes]) -> list[int]:
    """The blocks of group `index` with these hashes, which are all cached."""
    found = [pool.lookup((index, key)) for key in keys]
    blocks = [block_id for block_id in found if block_id is not None]
    if len(blocks) < len(found):
        raise IntegrityError(f"group {index} lacks blocks of a cached prefix")
    return blocks


def _is_cached(pool: BlockPool, group: int, digest: bytes) -> bool:
    return pool.lookup((group, digest)) is not None
