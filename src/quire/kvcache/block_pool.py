"""`BlockPool`: reference counts of the KV blocks, the keys of cached blocks, and order of reuse.

Called by `KVCacheManager` only. Knows block ids and block keys, but no requests, tokens or
memory.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from quire.errors import IntegrityError

if TYPE_CHECKING:
    from quire.kvcache.block_events import BlockListener

BlockKey = tuple[int, bytes]
"""Index of the layer group, and the hash of the tokens up to the block's end. The index is `~group`
for a block that is not full (`Tail.key`)."""


class BlockPool:
    """The blocks 0 .. num_blocks - 1, each with a reference count and optionally a key.

    A block is in exactly one state: fresh (never used; has no entry in any list, so that a large
    pool takes no time at start), empty (free, without a key), cached (free, with a key: a prefix
    hit can use it again) or held (reference count > 0). `allocate` prefers empty blocks, then
    fresh ones unless many are cached, then the least recently freed cached one, which loses its
    key. Owned by the engine's thread.
    """

    def __init__(self, num_blocks: int, most_cached: int | None = None) -> None:
        """`most_cached`: cached blocks beyond so many are reused before fresh ones, which would
        take memory; None: fresh ones come first in any case."""
        self.num_blocks = num_blocks
        self._most_cached = num_blocks if most_cached is None else most_cached
        self._ref_counts: list[int] = []
        """Reference count of each block that was ever used; fresh blocks are beyond the end."""
        self._keys: list[BlockKey | None] = []
        """The key under which each used block is registered."""
        self._empty: list[int] = []
        """A stack: the most recently used memory is reused first."""
        self._cached: OrderedDict[int, None] = OrderedDict()
        """Least recently freed first. An OrderedDict, to remove a hit from the middle in O(1)."""
        self._by_key: dict[BlockKey, int] = {}
        self.events: list[BlockListener] = []
        """Notified of keys that are registered and dropped."""
        self.before_reuse: Callable[[int], None] | None = None
        """Called with the id of a used block before `allocate` returns it and its contents
        change."""

    @property
    def num_free(self) -> int:
        """Blocks that `allocate` can return: all that are not held."""
        return self.num_blocks - len(self._ref_counts) + len(self._empty) + len(self._cached)

    @property
    def num_held(self) -> int:
        """Blocks with a reference count above 0."""
        return len(self._ref_counts) - len(self._empty) - len(self._cached)

    @property
    def num_used(self) -> int:
        """Blocks that are not fresh: 0 .. `num_used` - 1. The next fresh ones follow in order."""
        return len(self._ref_counts)

    @property
    def num_before_fresh(self) -> int:
        """Free blocks that `allocate` returns before the first fresh one."""
        return len(self._empty) + max(0, len(self._cached) - self._most_cached)

    def allocate(self, count: int) -> list[int]:
        """Takes `count` blocks, with a reference count of 1. The caller has checked `num_free`."""
        if count > self.num_free:
            raise IntegrityError(f"{count} blocks asked for, {self.num_free} free")
        return [self._take() for _ in range(count)]

    def lookup(self, key: BlockKey) -> int | None:
        """The block registered under `key`, held or free. No side effect."""
        return self._by_key.get(key)

    def key_of(self, block_id: int) -> BlockKey | None:
        """The key under which a used block is registered, if any. No side effect."""
        return self._keys[block_id]

    def num_revived_by(self, block_ids: Iterable[int]) -> int:
        """Number of these blocks that are free: `hold` would lower `num_free` by it."""
        return sum(1 for block_id in block_ids if self._ref_counts[block_id] == 0)

    def hold(self, block_ids: Iterable[int]) -> None:
        """Adds a reference to each of these registered blocks."""
        for block_id in block_ids:
            if self._ref_counts[block_id] == 0:
                del self._cached[block_id]
            self._ref_counts[block_id] += 1

    def release(self, block_ids: Iterable[int]) -> None:
        """Removes a reference from each. Blocks without references are reused in this order."""
        counts = self._ref_counts
        for block_id in block_ids:
            if counts[block_id] <= 0:
                raise IntegrityError(f"block {block_id} is released more often than held")
            counts[block_id] -= 1
            if counts[block_id] == 0:
                self._put_back(block_id)

    def register(self, block_id: int, key: BlockKey) -> bool:
        """Adds a held, full block to the prefix cache. Returns False and changes nothing if the key
        is in use or the block has a key."""
        if self._keys[block_id] is not None or key in self._by_key:
            return False
        self._keys[block_id] = key
        self._by_key[key] = block_id
        return True

    def unregister(self, block_id: int) -> None:
        """Undoes `register`, for a held or a free block whose contents do not match its key."""
        if self._keys[block_id] is None:
            return
        self._drop_key(block_id)
        if self._ref_counts[block_id] == 0:
            del self._cached[block_id]
            self._empty.append(block_id)

    def take_over(self, block_id: int) -> None:
        """Removes the key of a held block whose holder writes to it from now on."""
        self.unregister(block_id)
        if self.before_reuse is not None:
            self.before_reuse(block_id)

    def forget(self, key: BlockKey) -> None:
        """Removes `key` from the prefix cache. Requests that hold its block keep it."""
        block_id = self._by_key.get(key)
        if block_id is not None:
            self.unregister(block_id)

    def forget_cached(self) -> bool:
        """Drops every key. Returns False, without any change, while a block is held."""
        if self.num_held:
            return False
        self._empty.extend(self._cached)
        self._cached.clear()
        self._by_key.clear()
        self._keys = [None] * len(self._keys)
        for listener in self.events:
            listener.cleared()
        return True

    def keys_of(self, group: int) -> list[bytes]:
        """The keys of a group's registered blocks."""
        return [digest for index, digest in self._by_key if index == group]

    def states(self) -> str:
        """A letter for each block: s held by several, u held once, c cached, f fresh or empty."""
        used = "".join(
            "s" if count > 1 else "u" if count else "f" if key is None else "c"
            for count, key in zip(self._ref_counts, self._keys, strict=True)
        )
        return used + "f" * (self.num_blocks - len(used))

    def _take(self) -> int:
        if self._empty:
            block_id = self._empty.pop()
        elif len(self._ref_counts) < self.num_blocks and len(self._cached) <= self._most_cached:
            block_id = len(self._ref_counts)
            self._ref_counts.append(0)
            self._keys.append(None)
        else:
            block_id, _ = self._cached.popitem(last=False)
            self._drop_key(block_id)
        self._ref_counts[block_id] = 1
        if self.before_reuse is not None:
            self.before_reuse(block_id)
        return block_id

    def _drop_key(self, block_id: int) -> None:
        key = self._keys[block_id]
        if key is not None:
            del self._by_key[key]
            self._keys[block_id] = None
            for listener in self.events:
                listener.removed(key)

    def _put_back(self, block_id: int) -> None:
        if self._keys[block_id] is None:
            self._empty.append(block_id)
        else:
            self._cached[block_id] = None
