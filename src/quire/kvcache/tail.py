"""`Tail`: the tokens after the full blocks of a prompt, without the last token.

The last token must be computed in any case, for its logits. An engine that gets a tail's K/V from
another engine computes nothing else. The block of a tail is not full: a request that starts with it
writes to it, so the block is removed from the prefix cache then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quire.kvcache.block_pool import BlockKey, BlockPool
from quire.kvcache.sequence import extra_of, hash_block
from quire.protocol.input_rows import InputRows


@dataclass(frozen=True, slots=True)
class Tail:
    """Identifies a tail. Every layer group has one block for it."""

    digest: bytes
    """Hash of all tokens up to its end. It never equals the key of a full block, because it hashes
    fewer tokens after the same parent."""
    num_tokens: int
    """At least 1, and less than the block size."""

    def key(self, group: int) -> BlockKey:
        """Key of the tail's block of a group in the pool. No KV events are sent for such blocks."""
        return ~group, self.digest

    def cached(self, pool: BlockPool, num_groups: int) -> list[int]:
        """The block of each group; empty unless the pool has all of them."""
        found = [pool.lookup(self.key(group)) for group in range(num_groups)]
        return [block_id for block_id in found if block_id is not None] if None not in found else []


def tail_of(
    parent: bytes,
    token_ids: Sequence[int],
    num_tokens: int,
    size: int,
    input_rows: Sequence[InputRows] = (),
) -> Tail | None:
    """The tail of the first `num_tokens` tokens. `parent`: key of their last full block, or the
    root; `size`: tokens per block; `input_rows`: those of the request. None: at
    most the last token follows their full blocks."""
    end = num_tokens - 1
    begin = end // size * size
    if begin == end:
        return None
    extra = extra_of(input_rows, begin, end)
    return Tail(hash_block(parent, token_ids[begin:end], extra), end - begin)
