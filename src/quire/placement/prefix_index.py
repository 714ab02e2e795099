"""`PrefixIndex`: the prompts and replies that one engine probably has in its prefix cache.

It is built from the requests that were placed on the engine, not from what the engine reports: a
request that follows at once already finds the prefix that the engine is still computing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from quire.kvcache.sequence import extra_of, hash_block, request_roots
from quire.protocol.cache_scope import EVERYONE, CacheScope
from quire.protocol.input_rows import InputRows

_ROOT = b""
"""The keys are compared with each other only, so the model is not part of them."""


class BlockKeys:
    """The keys of the full blocks of a text that grows."""

    __slots__ = ("_begin", "_block_size", "_input_rows", "_parent", "_rest")

    def __init__(
        self, block_size: int, scope: CacheScope = EVERYONE, input_rows: Sequence[InputRows] = ()
    ) -> None:
        self._block_size = block_size
        self._input_rows = input_rows
        self._begin = 0
        """Position of the first token after the last full block."""
        self._parent = request_roots(_ROOT, scope)[1]
        self._rest: list[int] = []
        """Tokens after the last full block."""

    def extend(self, token_ids: Sequence[int]) -> list[bytes]:
        """Appends tokens; returns the keys of the blocks that are full now."""
        tokens, size, keys = [*self._rest, *token_ids], self._block_size, list[bytes]()
        num_full = len(tokens) - len(tokens) % size
        for first in range(0, num_full, size):
            extra = extra_of(self._input_rows, self._begin, self._begin + size)
            self._parent = hash_block(self._parent, tokens[first : first + size], extra)
            self._begin += size
            keys.append(self._parent)
        self._rest = tokens[num_full:]
        return keys


class PrefixIndex:
    """The keys of at most `num_blocks` blocks; those that were not used for longest go first."""

    def __init__(self, num_blocks: int) -> None:
        self._num_blocks = num_blocks
        self._keys: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._keys)

    def num_found(self, keys: Sequence[bytes]) -> int:
        """Number of blocks at the beginning of a text that are cached."""
        return next((i for i, key in enumerate(keys) if key not in self._keys), len(keys))

    def add(self, keys: Sequence[bytes]) -> None:
        """The engine computes or uses these blocks now."""
        for key in _last_first(keys):
            self._keys[key] = None
            self._keys.move_to_end(key)
        while len(self._keys) > self._num_blocks:
            self._keys.popitem(last=False)

    def clear(self) -> None:
        """The prefix cache was emptied."""
        self._keys.clear()


def _last_first(keys: Sequence[bytes]) -> Iterable[bytes]:
    """The end of a text is evicted before its beginning, as in the engine's block pool."""
    return reversed(keys)
