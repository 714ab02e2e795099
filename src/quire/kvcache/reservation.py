"""`Reservation`: blocks that are held for K/V that is loaded, not computed by a step."""

from __future__ import annotations

from dataclasses import dataclass, field

from quire.kvcache.block_pool import BlockKey


@dataclass(eq=False, slots=True)
class Reservation:
    """Created, completed and released by `KVCacheManager`. Its blocks are in no block table."""

    block_ids: dict[BlockKey, int]
    """The blocks to write, by the key that each will get."""
    prefix: list[int] = field(default_factory=list)
    """Cached blocks before them, which must not be reused meanwhile."""

    @property
    def held(self) -> list[int]:
        """All blocks of the reservation."""
        return [*self.prefix, *self.block_ids.values()]
