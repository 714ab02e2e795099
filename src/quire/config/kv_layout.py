"""`KVLayout`: the groups of a model's layers, which share one pool of blocks, and what it holds."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass

from quire.config.kv_groups import FullGroup, LatentGroup, WindowGroup
from quire.config.state_groups import STATE_ALIGN, StateGroup

AnyKVGroup = FullGroup | WindowGroup | LatentGroup | StateGroup
"""The kinds of groups."""


@dataclass(frozen=True, slots=True)
class KVPlace:
    """Place of the memory of a layer: a group's blocks, and a slot in each block."""

    group: int
    slot: int


@dataclass(frozen=True, slots=True)
class KVLayout:
    """The groups of a model. Every block has `num_slots` slots, so that all groups share one pool
    of blocks of one size."""

    groups: tuple[AnyKVGroup, ...]
    num_slots: int
    """In a group with fewer layers the last slots are unused."""

    @property
    def keeps_all(self) -> bool:
        """Whether every position of every layer is kept."""
        return all(group.keeps_all for group in self.groups)

    @property
    def shared_group(self) -> int | None:
        """The group whose block tables a draft model has too: the first that keeps every position;
        None if there is none."""
        for index, group in enumerate(self.groups):
            if group.keeps_all and group.is_by_position:
                return index
        return None

    @property
    def states(self) -> tuple[StateGroup, ...]:
        """The groups of recurrent layers: none or one."""
        return tuple(group for group in self.groups if isinstance(group, StateGroup))

    def block_bytes(self, slot_bytes: int) -> int:
        """Bytes of a block whose slots take `slot_bytes`. Every piece of a state must fit in a
        block; if no layer stores anything by position, a block is a whole state."""
        if not self.states:
            return slot_bytes
        if not slot_bytes:
            return sum(group.num_bytes for group in self.states)
        pieces = (state.piece_bytes for group in self.states for state in group.states)
        most = max([slot_bytes, *pieces])
        return -(-most // STATE_ALIGN) * STATE_ALIGN

    def sized(self, block_bytes: int) -> KVLayout:
        """The layout with the number of blocks of each state."""
        groups = (
            group.sized(block_bytes) if isinstance(group, StateGroup) else group
            for group in self.groups
        )
        return KVLayout(tuple(groups), self.num_slots)

    def table_width(self, max_model_len: int, block_size: int) -> int:
        """Entries of the longest block table."""
        widths = (group.num_entries(max_model_len, block_size) for group in self.groups)
        return max(widths, default=0)

    def describe(self) -> str:
        """The groups by kind, as text: `4 x window 512, 1 x full`."""
        kinds = Counter(group.describe() for group in self.groups)
        return ", ".join(f"{count} x {kind}" for kind, count in kinds.items())

    def places(self) -> dict[int, KVPlace]:
        """The place of every layer's memory, by its number."""
        return {
            layer: KVPlace(index, slot)
            for index, group in enumerate(self.groups)
            for slot, layer in enumerate(group.layers)
        }

    def most_blocks(self, num_tokens: int, max_chunk: int, block_size: int) -> int:
        """`KVGroup.most_blocks`, summed over all groups."""
        return sum(group.most_blocks(num_tokens, max_chunk, block_size) for group in self.groups)

    def max_concurrency(
        self, num_blocks: int, num_tokens: int, max_chunk: int, block_size: int
    ) -> float:
        """Requests of `num_tokens` that can generate at once, while one more prompt is computed; 0
        if nothing is kept."""
        if not self.groups:
            return 0.0
        kept = self.most_blocks(num_tokens, 1, block_size)
        return (num_blocks - self._for_a_prompt(num_tokens, max_chunk, block_size)) / kept

    def tokens_held(self, num_blocks: int, num_tokens: int, max_chunk: int, block_size: int) -> int:
        """Tokens of requests of `num_tokens` that so many blocks have room for, in whole blocks; 0
        if nothing is kept."""
        if not self.groups:
            return 0
        kept = self.most_blocks(num_tokens, 1, block_size)
        free = num_blocks - self._for_a_prompt(num_tokens, max_chunk, block_size)
        return free * -(-num_tokens // block_size) // kept * block_size

    def _for_a_prompt(self, num_tokens: int, max_chunk: int, block_size: int) -> int:
        """Further blocks that a request holds while its prompt is computed."""
        kept = self.most_blocks(num_tokens, 1, block_size)
        return self.most_blocks(num_tokens, max_chunk, block_size) - kept

    def longest(self, num_blocks: int, limit: int, max_chunk: int, block_size: int) -> int:
        """The most tokens, up to `limit`, with which a request needs at most `num_blocks`."""

        def needs(num_tokens: int) -> int:
            return self.most_blocks(num_tokens, max_chunk, block_size)

        if needs(limit) <= num_blocks:
            return limit
        return bisect_right(range(limit), num_blocks, key=needs) - 1
