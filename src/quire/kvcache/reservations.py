"""`Reservations`: blocks for K/V that is loaded, not computed by a step.

Used by the scheduler's loads through `KVCacheManager.reservations`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from quire.kvcache.block_pool import BlockKey, BlockPool
from quire.kvcache.sequence import CachedPrefix, SequenceBlocks


@dataclass(eq=False, slots=True)
class Reservation:
    """Blocks that are held for K/V that is loaded, not computed by a step. They are
    in no block table."""

    block_ids: dict[BlockKey, int]
    """The blocks to write, by the key that each will get."""
    prefix: list[int] = field(default_factory=list)
    """Cached blocks before them, which must not be reused meanwhile."""

    @property
    def held(self) -> list[int]:
        """All blocks of the reservation."""
        return [*self.prefix, *self.block_ids.values()]


class Reservations:
    """The reservations of one pool that are not complete. One thread, the engine's."""

    def __init__(self, pool: BlockPool, groups: Sequence[int]) -> None:
        """`groups`: those whose full blocks are offered to the prefix cache."""
        self._pool = pool
        self._groups = groups
        self._open: set[Reservation] = set()

    @property
    def held(self) -> list[list[int]]:
        """The blocks of each reservation."""
        return [one.held for one in self._open]

    def reserve(self, prefix: CachedPrefix, keys: Sequence[BlockKey]) -> Reservation:
        """Holds the blocks of a prefix, and allocates a block for each key. The caller has checked
        that enough blocks are free."""
        before = [block_id for table in prefix.tables for block_id in table]
        self._pool.hold(before)
        new = self._pool.allocate(len(keys))
        reservation = Reservation(dict(zip(keys, new, strict=True)), before)
        self._open.add(reservation)
        return reservation

    def complete(
        self,
        reservation: Reservation,
        written: Sequence[BlockKey],
        blocks: SequenceBlocks,
        token_ids: Sequence[int],
    ) -> None:
        """Registers the blocks of the `written` keys, which hold K/V of a request's tokens now, and
        releases all blocks of the reservation. Blocks of later keys are released first, so that
        they are reused first."""
        new = [key for key in written if self._pool.register(reservation.block_ids[key], key)]
        if self._pool.events and new:
            entry_of = {key: entry for entry, key in enumerate(blocks.keys)}
            for group in self._groups:
                entries = sorted(entry_of[digest] for index, digest in new if index == group)
                for listener in self._pool.events:
                    listener.stored(blocks, token_ids, group, entries)
        self._pool.release(reversed(reservation.held))
        self._open.remove(reservation)
