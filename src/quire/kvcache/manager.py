"""`KVCacheManager`: gives requests their KV blocks and finds the prefixes that are cached.

Called by the scheduler, which passes each request's `SequenceBlocks` and token ids.
Knows nothing of priorities, budgets or states.
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.config.records import CacheConfig
from quire.errors import IntegrityError
from quire.kvcache.block_pool import BlockPool
from quire.kvcache.hashing import hash_block, model_root, request_root


class SequenceBlocks:
    """One request's block table and the keys of its full blocks.

    Position p lies in `block_ids[p // block_size]`. Keys are extended as tokens come and
    survive a preemption, because they depend on the tokens alone.
    """

    __slots__ = ("block_ids", "keys", "num_registered", "root")

    def __init__(self, root: bytes) -> None:
        self.root = root
        self.block_ids: list[int] = []
        self.keys: list[bytes] = []
        self.num_registered = 0
        """Leading blocks that were offered to the prefix cache, or came from it."""


class KVCacheManager:
    """Block tables over one `BlockPool`. Invariant: `check_integrity`. One thread, the engine's.

    A block becomes findable when its last token is scheduled, one step before its K/V is
    there: a step writes all its K/V of a layer before any of its tokens attends to it, so a
    request may share blocks with one that is computed in the same step. `free` takes back
    the keys of what was never computed.
    """

    def __init__(self, config: CacheConfig) -> None:
        self.block_size = config.block_size
        self.enable_caching = config.enable_prefix_caching
        self.pool = BlockPool(config.num_blocks)
        self._root = model_root(config.fingerprint, config.block_size, config.kv_cache_dtype)
        self._open: dict[int, SequenceBlocks] = {}

    @property
    def usage(self) -> float:
        """Share of the pool that requests hold, 0 to 1."""
        return self.pool.num_held / self.pool.num_blocks

    def open(self, cache_salt: str | None = None) -> SequenceBlocks:
        """An empty block table; requests share blocks only under an equal salt."""
        return SequenceBlocks(request_root(self._root, cache_salt=cache_salt))

    def get_computed_blocks(self, blocks: SequenceBlocks, token_ids: Sequence[int]) -> list[int]:
        """The cached blocks that begin `token_ids`; all but the last token at most, because its
        logits must be computed. Holds nothing yet."""
        if not self.enable_caching:
            return []
        last = (len(token_ids) - 1) // self.block_size
        self._extend_keys(blocks, token_ids, last)
        found: list[int] = []
        for key in blocks.keys[:last]:
            block_id = self.pool.lookup(key)
            if block_id is None:
                break
            found.append(block_id)
        return found

    def num_free_after(self, num_tokens: int, hits: Sequence[int]) -> int:
        """Blocks left if a new request took `hits` and enough for `num_tokens`; may be negative."""
        wanted = -(-num_tokens // self.block_size) - len(hits)
        return self.pool.num_free - self.pool.num_revived_by(hits) - wanted

    def take_hits(self, blocks: SequenceBlocks, hits: Sequence[int]) -> None:
        """Begins an empty table with cached blocks."""
        if blocks.block_ids:
            raise IntegrityError("hits can only begin a block table")
        self.pool.hold(hits)
        blocks.block_ids.extend(hits)
        blocks.num_registered = len(hits)
        self._open[id(blocks)] = blocks

    def allocate_slots(
        self, blocks: SequenceBlocks, token_ids: Sequence[int], num_tokens: int
    ) -> list[int] | None:
        """Makes room for the first `num_tokens` of `token_ids` and offers their full blocks to
        the prefix cache. Returns the blocks appended; None, with no change, if too few are free."""
        missing = -(-num_tokens // self.block_size) - len(blocks.block_ids)
        if missing > self.pool.num_free:
            return None
        added = self.pool.allocate(missing) if missing > 0 else []
        if added:
            self._open[id(blocks)] = blocks
            blocks.block_ids.extend(added)
        if self.enable_caching:
            self._register(blocks, token_ids, num_tokens // self.block_size)
        return added

    def free(self, blocks: SequenceBlocks, num_computed_tokens: int) -> None:
        """Gives everything back, the tail first, so that it is reused before the beginning.

        Blocks that lie beyond `num_computed_tokens` hold nothing and lose their keys.
        """
        num_valid = num_computed_tokens // self.block_size
        for block_id in blocks.block_ids[num_valid : blocks.num_registered]:
            self.pool.unregister(block_id)
        self.pool.release(reversed(blocks.block_ids))
        blocks.block_ids.clear()
        blocks.num_registered = 0
        self._open.pop(id(blocks), None)

    def forget(self, blocks: SequenceBlocks) -> None:
        """Takes out of the prefix cache what holds the tokens of these blocks, whoever computed
        it: what came of them is not to be trusted. The request keeps its blocks."""
        for key in blocks.keys:
            self.pool.forget(key)

    def reset_prefix_cache(self) -> bool:
        """Forgets every cached block. False, and no change, while a request holds blocks."""
        return self.pool.forget_cached()

    def check_integrity(self) -> None:
        """Raises IntegrityError if a count, a state or a key is wrong. O(blocks in use)."""
        self.pool.check_integrity([blocks.block_ids for blocks in self._open.values()])

    def _register(self, blocks: SequenceBlocks, token_ids: Sequence[int], num_full: int) -> None:
        if num_full <= blocks.num_registered:
            return
        self._extend_keys(blocks, token_ids, num_full)
        for index in range(blocks.num_registered, num_full):
            self.pool.register(blocks.block_ids[index], blocks.keys[index])
        blocks.num_registered = num_full

    def _extend_keys(self, blocks: SequenceBlocks, token_ids: Sequence[int], count: int) -> None:
        size = self.block_size
        keys = blocks.keys
        for index in range(len(keys), count):
            parent = keys[-1] if keys else blocks.root
            keys.append(hash_block(parent, token_ids[index * size : (index + 1) * size]))
