"""`Tail`: the tokens behind the full blocks of a prompt, up to the last token but one.

The last token's logits must be computed in any case. An engine that gets a tail's K/V from another
one computes nothing else. The block of a tail is not full: whoever starts with it writes to it, so
that it is no one else's any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quire.kvcache.block_pool import BlockKey, BlockPool
from quire.kvcache.hashing import hash_block


@dataclass(frozen=True, slots=True)
class Tail:
    """A tail by its name. Every group of layers has a block of it."""

    digest: bytes
    """The hash of all tokens up to its end. It has fewer tokens than a block behind the same
    parent, so that it is no block's key."""
    num_tokens: int
    """At least 1, and fewer than a block has."""

    def key(self, group: int) -> BlockKey:
        """Of the block of a group in the pool. Nobody is told of blocks with such a key."""
        return ~group, self.digest

    def cached(self, pool: BlockPool, num_groups: int) -> list[int]:
        """The block of each group; nothing unless the pool has them all."""
        found = [pool.lookup(self.key(group)) for group in range(num_groups)]
        return [block_id for block_id in found if block_id is not None] if None not in found else []


def tail_of(parent: bytes, token_ids: Sequence[int], num_tokens: int, size: int) -> Tail | None:
    """The tail of the first `num_tokens` tokens. `parent`: the key of their last full block, or the
    root. `size`: tokens of a block. None: nothing is behind their full blocks but the last one."""
    end = num_tokens - 1
    begin = end // size * size
    if begin == end:
        return None
    return Tail(hash_block(parent, token_ids[begin:end]), end - begin)
