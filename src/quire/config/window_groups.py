"""The KV group of layers with a sliding window, which release blocks before a request ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from quire.config.kv_groups import FullGroup, KVGroup


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
