"""Kinds of KV groups: how layers share blocks of the KV cache, and how many blocks a request needs.

A kind of group is one class. It decides which blocks a request holds, when it gives them back, and
how far a cached prefix reaches; block accounting, planning and backends ask it and know no kinds.
Groups are made from a program by `program.kv_groups`. Knows no program, no request and no memory.

Legend: S tokens in a block (the block size). Entry e of a block table is the block of positions
e * S .. e * S + S - 1.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import lru_cache
from typing import ClassVar

import msgspec

STATE_CHUNK = 16
"""Tokens of a chunk of a recurrent layer. Chunks begin at multiples of it. The stored state is the
one after the last whole chunk; the rows of the chunk under way are stored next to it."""
STATE_ALIGN = 64
"""A piece of a state takes a multiple of so many bytes."""
SNAPSHOT_TOKENS = 1024
"""The fewest tokens between two snapshots of a state while a request runs."""


class KVShape(msgspec.Struct, frozen=True, array_like=True):
    """Numbers that one token stores in a layer: K [num_heads, key_dim] and V [num_heads,
    value_dim]. A latent layer has one head and value_dim 0: V is the first `latent_dim` numbers of
    K."""

    num_heads: int
    key_dim: int
    value_dim: int
    latent_dim: int = 0

    @property
    def parts(self) -> tuple[int, int]:
        """Numbers of a head that share a scale in a cache of bytes: those of K and V, or of K's
        latent and rotary parts."""
        if not self.latent_dim:
            return self.key_dim, self.value_dim
        return self.latent_dim, self.key_dim - self.latent_dim

    @property
    def width(self) -> int:
        """Numbers of a token."""
        return self.num_heads * (self.key_dim + self.value_dim)


class StateShape(msgspec.Struct, frozen=True, array_like=True):
    """State that a recurrent layer stores for a request: `num_pieces` arrays of `width` float32
    numbers, such as one for each head. A piece lies within one block."""

    num_pieces: int
    width: int

    @property
    def piece_bytes(self) -> int:
        """Bytes of a piece with its padding."""
        return -(-4 * self.width // STATE_ALIGN) * STATE_ALIGN


class KVGroup(msgspec.Struct, frozen=True, tag_field="kind"):
    """Layers that share a block table. A block of the group holds S tokens of each of its layers.

    A subclass is a kind of group. A new kind needs its class, and nothing in the block accounting.
    The methods here are those of a kind that gives nothing back before a request ends.
    """

    layers: tuple[int, ...]
    """The number of each layer's memory; the first has slot 0 of a block, the next slot 1."""
    shape: KVShape

    event_name: ClassVar[str]
    """vLLM's name of the kind, for KV events."""
    is_by_position: ClassVar[bool] = True
    """Whether entry e of a table holds positions e * S .. e * S + S - 1, so that a full block can
    be found again by the tokens up to its end."""

    @property
    def window(self) -> int | None:
        """Positions that a token sees, its own included; None: all up to its own."""
        return None

    @property
    def keeps_all(self) -> bool:
        """Whether it keeps what it stored of every position until the request ends."""
        return True

    def limited(self, max_model_len: int) -> AnyKVGroup:  # noqa: ARG002
        """The kind that keeps the same of requests with at most `max_model_len` tokens."""
        return self  # type: ignore[return-value]  # only kinds of `AnyKVGroup` are made

    @abstractmethod
    def serves(self, needed: KVGroup) -> bool:
        """Whether this group keeps all that a layer reads which needs a group like `needed`."""

    def num_entries(self, num_tokens: int, block_size: int) -> int:
        """Length of the block table once `num_tokens` are computed: released entries count."""
        return -(-num_tokens // block_size)

    def first_entry(self, position: int, block_size: int) -> int:  # noqa: ARG002
        """The first entry of a table that a token at `position` or a later one reads. Entries
        before it are released."""
        return 0

    def release_due(self, first_entry: int, block_size: int) -> int | None:  # noqa: ARG002
        """The number of tokens at which a table that begins at `first_entry` has an entry to
        release; None: it never has."""
        return None

    def most_blocks(self, num_tokens: int, max_chunk: int, block_size: int) -> int:  # noqa: ARG002
        """The most blocks that a request of `num_tokens` holds at once, if no step computes more
        than `max_chunk` of its tokens."""
        return self.num_entries(num_tokens, block_size)

    def most_useful(self, num_tokens: int, block_size: int) -> int:
        """The most blocks of use for a request of `num_tokens`, cached ones included."""
        return -(-num_tokens // block_size)

    @abstractmethod
    def longest_hit(self, is_cached: Callable[[int], bool], end: int, block_size: int) -> int:
        """The largest number of entries, at most `end`, after which the next token finds cached
        all that it reads of this group. `is_cached` says of one entry whether the pool has it."""

    @abstractmethod
    def describe(self) -> str:
        """The kind, as text: `window 512`."""


class FullGroup(KVGroup, frozen=True, tag="full"):
    """A token sees all positions up to its own."""

    event_name: ClassVar[str] = "full_attention"

    def serves(self, needed: KVGroup) -> bool:
        return needed.shape == self.shape

    def longest_hit(self, is_cached: Callable[[int], bool], end: int, block_size: int) -> int:  # noqa: ARG002
        return next((entry for entry in range(end) if not is_cached(entry)), end)

    def describe(self) -> str:
        return "full"


class WindowGroup(KVGroup, frozen=True, tag="window"):
    """A token sees the last `size` positions, its own included: earlier blocks are released."""

    size: int

    event_name: ClassVar[str] = "sliding_window"

    @property
    def window(self) -> int | None:
        return self.size

    @property
    def keeps_all(self) -> bool:
        return False

    def limited(self, max_model_len: int) -> AnyKVGroup:
        return self if self.size < max_model_len else FullGroup(self.layers, self.shape)

    def serves(self, needed: KVGroup) -> bool:
        return needed.shape == self.shape and (needed.window or self.size + 1) <= self.size

    def first_entry(self, position: int, block_size: int) -> int:
        return max(0, position - self.size + 1) // block_size

    def release_due(self, first_entry: int, block_size: int) -> int | None:
        return (first_entry + 1) * block_size + self.size

    def most_blocks(self, num_tokens: int, max_chunk: int, block_size: int) -> int:
        # A step accesses one run of positions, which may begin anywhere in a block.
        run = self.size - 1 + max_chunk
        return min(-(-num_tokens // block_size), -(-(run - 1) // block_size) + 1)

    def longest_hit(self, is_cached: Callable[[int], bool], end: int, block_size: int) -> int:
        # An entry that is missing is also missing for every shorter prefix that ends after it.
        entry = self.first_entry(end * block_size, block_size)
        while entry < end:
            if is_cached(entry):
                entry += 1
            else:
                end = entry
                entry = self.first_entry(end * block_size, block_size)
        return end

    def describe(self) -> str:
        return f"window {self.size}"


class LatentGroup(FullGroup, frozen=True, tag="latent"):
    """A `FullGroup` with one row for all heads, of which V is a part (multi-head latent
    attention)."""

    event_name: ClassVar[str] = "mla_attention"

    def describe(self) -> str:
        return "latent"


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


AnyKVGroup = FullGroup | WindowGroup | LatentGroup | StateGroup
"""The kinds that a configuration can hold."""
