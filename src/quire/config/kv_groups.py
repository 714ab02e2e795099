"""Kinds of KV groups: how layers share blocks of the KV cache, and how many blocks a request needs.

A kind of group is one class. It decides which blocks a request holds, when it gives them back, and
how far a cached prefix reaches; block accounting, planning and backends ask it and know no kinds.
`state_groups` has the kind of recurrent layers. Groups are made from a program by
`program.kv_groups`. Knows no program, no request and no memory.

Legend: S tokens in a block (the block size). Entry e of a block table is the block of positions
e * S .. e * S + S - 1.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar

import msgspec


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

    def limited(self, max_model_len: int) -> KVGroup:  # noqa: ARG002
        """The kind that keeps the same of requests with at most `max_model_len` tokens."""
        return self

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


class LatentGroup(FullGroup, frozen=True, tag="latent"):
    """A `FullGroup` with one row for all heads, of which V is a part (multi-head latent
    attention)."""

    event_name: ClassVar[str] = "mla_attention"

    def describe(self) -> str:
        return "latent"


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

    def limited(self, max_model_len: int) -> KVGroup:
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
