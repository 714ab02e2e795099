"""`MemoryAhead`: makes the system allocate memory for KV blocks before a request needs it.

The engine core calls it when there is nothing else to do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from quire.config.records import EngineConfig
from quire.core.capability import Capability
from quire.kvcache.block_pool import BlockPool

_MOST_BYTES = 256 << 20
_PIECE_BYTES = 4 << 20
"""Bytes written at a time. A new request may have to wait for it, some milliseconds."""


class MemoryAhead(Capability):
    """Writes zeros to unused blocks that the pool will hand out next.

    The first write to a page takes several times as long as later ones, because the system, and the
    host of a virtual machine, must allocate and clear the page. A prompt, or K/V that is loaded,
    would wait for that. Memory is prepared for one request of the maximum length, at most 256 MiB.
    """

    def __init__(
        self,
        config: EngineConfig,
        pool: BlockPool,
        write: Callable[[Sequence[int], memoryview], bool],
    ) -> None:
        """`write`: writes data to blocks; returns False if it fails."""
        cache = config.cache
        self._pool = pool
        self._write = write
        self._block_bytes = cache.block_bytes
        of_a_request = math.ceil(config.model.max_positions / cache.block_size)
        of_a_request *= len(cache.layout.groups)
        self._num_ahead = min(of_a_request, _MOST_BYTES // max(1, cache.block_bytes))
        self._piece = max(1, _PIECE_BYTES // max(1, cache.block_bytes))
        self._end = 0
        """Id of the block after the last one that was written to."""

    def use_idle_time(self) -> bool:
        """Writes to some blocks."""
        blocks = self._next_piece()
        if not blocks:
            return False
        zeros = memoryview(bytes(len(blocks) * self._block_bytes))
        self._end = blocks.stop
        return self._write(blocks, zeros)

    def has_idle_work(self) -> bool:
        return bool(self._next_piece())

    def forget(self) -> None:
        """Starts again, because the memory of the pool was released to the system."""
        self._end = 0

    def _next_piece(self) -> range:
        first_fresh = self._pool.num_used
        first = max(self._end, first_fresh)
        end = min(first + self._piece, first_fresh + self._num_ahead, self._pool.num_blocks)
        return range(first, end)
