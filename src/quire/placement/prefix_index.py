"""`PrefixIndex`: the prompts and replies that one engine probably has in its prefix cache.

It is built from the requests that were placed on the engine, so that a request that follows at once
already finds the prefix that the engine is still computing, and from the blocks that the engine
reports: other front ends place requests there too, and blocks leave the cache.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from quire.kvcache.sequence import hash_blocks, request_root, request_roots
from quire.protocol.cache_scope import EVERYONE, CacheScope
from quire.protocol.input_rows import InputRows

Holders = dict[bytes, int]
"""By the key of a block, the indices that have it: bit n for index n."""


class BlockKeys:
    """The keys of the full blocks of a text that grows. They are the engine's, except for requests
    with an adapter, whose digest only the engine knows."""

    __slots__ = ("_begin", "_block_size", "_input_rows", "_parent", "_rest")

    def __init__(
        self,
        block_size: int,
        scope: CacheScope = EVERYONE,
        input_rows: Sequence[InputRows] = (),
        root: bytes = b"",
        adapter: str = "",
    ) -> None:
        """`root`: that of the model (`model_root`). `adapter`: what identifies the adapter."""
        self._block_size = block_size
        self._input_rows = input_rows
        self._begin = 0
        """Position of the first token after the last full block."""
        of_scope = request_roots(root, scope)[1]
        self._parent = request_root(of_scope, adapter_digest=adapter.encode())
        self._rest: list[int] = []
        """Tokens after the last full block."""

    def extend(self, token_ids: Sequence[int], known: list[bytes] | None = None) -> list[bytes]:
        """Appends tokens; returns the keys of the blocks that are full now. `known`: these keys, if
        they were computed before."""
        tokens, size = [*self._rest, *token_ids] if self._rest else token_ids, self._block_size
        keys = known or hash_blocks(self._parent, tokens, size, self._input_rows, self._begin)
        if keys:
            self._parent = keys[-1]
            self._begin += len(keys) * size
        self._rest = [*tokens[len(keys) * size :]]
        return keys


class PrefixIndex:
    """The keys of at most `num_blocks` blocks; those that were not used for longest go first."""

    def __init__(self, num_blocks: int, holders: Holders | None = None, number: int = 0) -> None:
        """`holders`: of several indices, of which this one has the number `number`."""
        self.num_blocks = num_blocks
        self._holders: Holders = {} if holders is None else holders
        self._bit = 1 << number
        self._keys: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._keys)

    def num_found(self, keys: Sequence[bytes]) -> int:
        """Number of blocks at the beginning of a text that are cached."""
        return next((i for i, key in enumerate(keys) if key not in self._keys), len(keys))

    def add(self, keys: Sequence[bytes]) -> None:
        """The engine computes or uses these blocks now."""
        known, holders, bit = self._keys, self._holders, self._bit
        for key in reversed(keys):  # the end of a text is evicted first, as in the block pool
            if key in known:
                known.move_to_end(key)
            else:
                known[key] = None
                others = holders.get(key)
                holders[key] = bit if others is None else others | bit
        while len(known) > self.num_blocks:
            self._forget(known.popitem(last=False)[0])

    def discard(self, keys: Iterable[bytes]) -> None:
        """The engine has dropped these blocks."""
        for key in keys:
            if key in self._keys:
                del self._keys[key]
                self._forget(key)

    def clear(self) -> None:
        """The prefix cache was emptied."""
        for key in self._keys:
            self._forget(key)
        self._keys.clear()

    def _forget(self, key: bytes) -> None:
        having = self._holders[key]
        if having == self._bit:
            del self._holders[key]
        else:
            self._holders[key] = having ^ self._bit


def by_overlap(holders: Holders, keys: Sequence[bytes], among: int) -> list[tuple[int, int]]:
    """Indices, as bits, with the number of blocks at the beginning of a text that they have, from
    the most to none. `among`: those of interest. An index that has a block is expected to have
    those before it, so that few blocks have to be looked up."""

    def is_missing(key: bytes) -> bool:
        """Whether an index that has the blocks before does not have this one."""
        return among & holders.get(key, 0) != among

    found, number = list[tuple[int, int]](), 0
    while among and number < len(keys):
        if not is_missing(keys[number]):
            number = bisect_left(keys, True, number + 1, key=is_missing)
        if number < len(keys):
            having = among & holders.get(keys[number], 0)
            found.append((among ^ having, number))
            among = having
    if among:
        found.append((among, len(keys)))
    return found[::-1]
