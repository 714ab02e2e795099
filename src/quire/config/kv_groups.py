"""How the layers of a model share the blocks of the KV cache, and how many blocks a request needs.

Made by `program.kv_groups` from the attention ops of a program. Read by the scheduler's block
accounting, by planning and by the backends. Knows no program, no request and no memory.

Legend: S tokens in a block (the block size). Entry e of a block table is the block of positions
e * S .. e * S + S - 1.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from typing import Literal

from quire.units import ceil_div

KVGroupKind = Literal["full", "window"]


@dataclass(frozen=True, slots=True)
class KVGroupSpec:
    """Layers that see the same positions, so that one block table serves all of them.

    A block that belongs to the group holds S tokens of each of its layers.
    """

    layers: tuple[int, ...]
    """`Attention.layer` of each; the first has slot 0 of a block, the next slot 1."""
    num_kv_heads: int
    head_dim: int
    window: int | None = None
    """Positions that a token sees, its own included; None: all positions up to its own."""

    @property
    def kind(self) -> KVGroupKind:
        """`window`: blocks that no later token sees are released."""
        return "full" if self.window is None else "window"

    def first_entry(self, position: int, block_size: int) -> int:
        """The first entry of a table that a token at `position` or a later one reads."""
        if self.window is None:
            return 0
        return max(0, position - self.window + 1) // block_size

    def most_blocks(self, num_tokens: int, max_chunk: int, block_size: int) -> int:
        """The most blocks that a request of `num_tokens` holds at once, if no step computes more
        than `max_chunk` of its tokens."""
        every = ceil_div(num_tokens, block_size)
        if self.window is None:
            return every
        # A step accesses one run of positions, which may begin anywhere in a block.
        run = self.window - 1 + max_chunk
        return min(every, ceil_div(run - 1, block_size) + 1)


@dataclass(frozen=True, slots=True)
class KVPlace:
    """Where a layer's K and V are stored: in a group's blocks, in a slot of each block."""

    group: int
    slot: int


@dataclass(frozen=True, slots=True)
class KVLayout:
    """The groups of a model. Every block has `num_slots` slots, so that all groups share one pool
    of blocks of one size."""

    groups: tuple[KVGroupSpec, ...]
    num_slots: int
    """In a group with fewer layers the last slots are unused."""

    @property
    def keeps_all(self) -> bool:
        """Whether every position of every layer is kept."""
        return all(group.window is None for group in self.groups)

    def describe(self) -> str:
        """The groups by kind, as text: `4 x window 512, 1 x full`."""
        kinds = Counter(
            "full" if group.window is None else f"window {group.window}" for group in self.groups
        )
        return ", ".join(f"{count} x {kind}" for kind, count in kinds.items())

    def places(self) -> dict[int, KVPlace]:
        """The place of every layer, by `Attention.layer`."""
        return {
            layer: KVPlace(index, slot)
            for index, group in enumerate(self.groups)
            for slot, layer in enumerate(group.layers)
        }

    def most_blocks(self, num_tokens: int, max_chunk: int, block_size: int) -> int:
        """`KVGroupSpec.most_blocks`, summed over all groups."""
        return sum(group.most_blocks(num_tokens, max_chunk, block_size) for group in self.groups)

    def max_concurrency(
        self, num_blocks: int, num_tokens: int, max_chunk: int, block_size: int
    ) -> float:
        """Requests of `num_tokens` that can generate at once, while one more prompt is computed."""
        kept = self.most_blocks(num_tokens, 1, block_size)
        return (num_blocks - self._for_a_prompt(num_tokens, max_chunk, block_size)) / kept

    def tokens_held(self, num_blocks: int, num_tokens: int, max_chunk: int, block_size: int) -> int:
        """Tokens of requests of `num_tokens` that so many blocks have room for, in whole blocks."""
        kept = self.most_blocks(num_tokens, 1, block_size)
        free = num_blocks - self._for_a_prompt(num_tokens, max_chunk, block_size)
        return free * ceil_div(num_tokens, block_size) // kept * block_size

    def _for_a_prompt(self, num_tokens: int, max_chunk: int, block_size: int) -> int:
        """What a request holds beside what it keeps, while its prompt is computed."""
        kept = self.most_blocks(num_tokens, 1, block_size)
        return self.most_blocks(num_tokens, max_chunk, block_size) - kept

    def longest(self, num_blocks: int, limit: int, max_chunk: int, block_size: int) -> int:
        """The most tokens, up to `limit`, with which a request needs at most `num_blocks`."""

        def needs(num_tokens: int) -> int:
            return self.most_blocks(num_tokens, max_chunk, block_size)

        if needs(limit) <= num_blocks:
            return limit
        return bisect_right(range(limit), num_blocks, key=needs) - 1
