"""`StateGroup`: the KV group of recurrent layers, which keep one state for each request."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import ClassVar

import msgspec

from quire.config.kv_groups import KVGroup

STATE_CHUNK = 16
"""Tokens of a chunk of a recurrent layer. Chunks begin at multiples of it. The stored state is the
one after the last whole chunk; the rows of the chunk under way are stored next to it."""
STATE_ALIGN = 64
"""A piece of a state takes a multiple of so many bytes."""
SNAPSHOT_TOKENS = 1024
"""The fewest tokens between two snapshots of a state while a request runs."""


class StateShape(msgspec.Struct, frozen=True, array_like=True):
    """State that a recurrent layer stores for a request: `num_pieces` arrays of `width` float32
    numbers, such as one for each head. A piece lies within one block."""

    num_pieces: int
    width: int

    @property
    def piece_bytes(self) -> int:
        """Bytes of a piece with its padding."""
        return -(-4 * self.width // STATE_ALIGN) * STATE_ALIGN


class StateGroup(KVGroup, frozen=True, tag="state"):
    """Recurrent layers: a request holds the same blocks whatever its length.

    They hold the pieces of all layers one after the other. Cached blocks of the group are a copy of
    a state, a snapshot: a request continues from it, and copies it because it writes to its own.
    """

    states: tuple[StateShape, ...]
    """Parallel to `layers`."""
    num_blocks: int = 0
    """Blocks of a state; 0 until the size of a block is known (`KVLayout.sized`)."""

    event_name: ClassVar[str] = "mamba"
    is_by_position: ClassVar[bool] = False

    @property
    def num_bytes(self) -> int:
        """Bytes of a state, without what is left at the ends of blocks."""
        return sum(state.num_pieces * state.piece_bytes for state in self.states)

    def serves(self, needed: KVGroup) -> bool:
        return isinstance(needed, StateGroup) and set(needed.states) <= set(self.states)

    def num_entries(self, num_tokens: int, block_size: int) -> int:  # noqa: ARG002
        return self.num_blocks if num_tokens else 0

    def most_useful(self, num_tokens: int, block_size: int) -> int:  # noqa: ARG002
        return self.num_blocks * (3 + num_tokens // SNAPSHOT_TOKENS)

    def longest_hit(self, is_cached: Callable[[int], bool], end: int, block_size: int) -> int:  # noqa: ARG002
        return next((entry for entry in range(end, 0, -1) if is_cached(entry - 1)), 0)

    def offsets(self, block_bytes: int) -> dict[int, list[tuple[int, int]]]:
        """For each layer, where its pieces lie: the entry of the table, and the bytes before the
        piece in this block. A piece that does not fit in the rest of a block begins the next."""
        found: dict[int, list[tuple[int, int]]] = {}
        entry = begin = 0
        for layer, state in zip(self.layers, self.states, strict=True):
            places = found[layer] = []
            for _ in range(state.num_pieces):
                if begin + state.piece_bytes > block_bytes:
                    entry, begin = entry + 1, 0
                places.append((entry, begin))
                begin += state.piece_bytes
        return found

    def used_bytes(self, entry: int, block_bytes: int) -> int:
        """Bytes of the pieces in a block, and before them. What follows is not a part of the
        state. 0 for an entry after the last piece."""
        return _used_bytes(self, block_bytes).get(entry, 0)

    def sized(self, block_bytes: int) -> StateGroup:
        """The group with its number of blocks."""
        entries = [entry for places in self.offsets(block_bytes).values() for entry, _ in places]
        last = max(entries, default=-1)
        return msgspec.structs.replace(self, num_blocks=last + 1)

    def describe(self) -> str:
        return "state"


@lru_cache(maxsize=8)
def _used_bytes(group: StateGroup, block_bytes: int) -> dict[int, int]:
    """Offset of the end of the last piece, by entry."""
    offsets = group.offsets(block_bytes)
    return {
        entry: begin + state.piece_bytes
        for layer, state in zip(group.layers, group.states, strict=True)
        for entry, begin in offsets[layer]
    }
