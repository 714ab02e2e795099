"""`MemoryAhead`: has the system give memory to KV blocks before a request needs it.

Owned by `EngineCore`, which calls it when there is nothing else to do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from quire.config.records import EngineConfig
from quire.kvcache.block_pool import BlockPool

_MOST_BYTES = 256 << 20
_PIECE_BYTES = 4 << 20
"""Written at a time: some milliseconds, which a new request may have to wait."""


class MemoryAhead:
    """Writes zeros to blocks that were never used, and that the pool hands out next.

    The first write to a page takes several times as long as later ones: the system has to find and
    to clear it, and the host of a virtual machine too. A prompt, or K/V that is loaded, would
    wait for that. Ahead are as many blocks as one request may need, and at most 256 MiB.
    """

    def __init__(
        self,
        config: EngineConfig,
        pool: BlockPool,
        write: Callable[[Sequence[int], memoryview], bool],
    ) -> None:
        """`write`: to these blocks; False if it fails."""
        cache = config.cache
        self._pool = pool
        self._write = write
        self._block_bytes = cache.block_bytes
        of_a_request = math.ceil(config.model.max_model_len / cache.block_size)
        of_a_request *= len(cache.layout.groups)
        self._num_ahead = min(of_a_request, _MOST_BYTES // max(1, cache.block_bytes))
        self._piece = max(1, _PIECE_BYTES // max(1, cache.block_bytes))
        self._end = 0
        """The block behind the last one that was written to."""

    def advance(self) -> bool:
        """Writes to some blocks. False: there is nothing left to do."""
        blocks = self._next_piece()
        if not blocks:
            return False
        zeros = memoryview(bytes(len(blocks) * self._block_bytes))
        self._end = blocks.stop
        return self._write(blocks, zeros)

    def is_wanted(self) -> bool:
        """Whether there is something left to do."""
        return bool(self._next_piece())

    def forget(self) -> None:
        """The memory of the pool was given back to the system."""
        self._end = 0

    def _next_piece(self) -> range:
        first_fresh = self._pool.num_used
        first = max(self._end, first_fresh)
        end = min(first + self._piece, first_fresh + self._num_ahead, self._pool.num_blocks)
        return range(first, end)
