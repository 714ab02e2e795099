"""`Reservation`: blocks that are held for K/V that comes from elsewhere than a step."""

from __future__ import annotations

from dataclasses import dataclass, field

from quire.kvcache.block_pool import BlockKey


@dataclass(eq=False, slots=True)
class Reservation:
    """Made, completed and given back by `KVCacheManager`. No request has its blocks."""

    block_ids: dict[BlockKey, int]
    """The blocks to be written, by the key that each will have."""
    prefix: list[int] = field(default_factory=list)
    """Cached blocks before them, which must not be reused meanwhile."""

    @property
    def held(self) -> list[int]:
        """Every block that it holds."""
        return [*self.prefix, *self.block_ids.values()]
