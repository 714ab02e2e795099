"""Share of prompt tokens that a KV cache should find: a simulation of its own, for `kv_workloads`.

Knows token ids and sizes; no engine. A pool of blocks, least recently used ones dropped first,
before a store that keeps everything in chunks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class Prediction:
    """Takes the requests in their order, one at a time."""

    block: int
    """Tokens of a block."""
    chunk: int
    """Tokens of a chunk."""
    pool_blocks: int
    pool: OrderedDict[int, None] = field(default_factory=OrderedDict)
    """Hashes of whole prefixes, the least recently used first."""
    stored: set[int] = field(default_factory=set)
    """Hashes of the prefixes that a chunk ends with."""
    num_tokens: int = 0
    num_hits: int = 0

    def take(self, prompt: Sequence[int], output: Sequence[int]) -> int:
        """Prompt tokens that are found; then all of the request's are kept."""
        hits = self._hits(self._keys(prompt[:-1]))
        self._keep(self._keys([*prompt, *output[:-1]]), len(prompt))
        self.num_tokens += len(prompt)
        self.num_hits += hits
        return hits

    @property
    def ratio(self) -> float:
        """Share of all prompt tokens so far that were found."""
        return self.num_hits / max(1, self.num_tokens)

    def _keys(self, tokens: Sequence[int]) -> list[int]:
        keys, parent = [], 0
        for start in range(0, len(tokens) - self.block + 1, self.block):
            parent = hash((parent, *tokens[start : start + self.block]))
            keys.append(parent)
        return keys

    def _hits(self, keys: list[int]) -> int:
        in_pool = 0
        while in_pool < len(keys) and keys[in_pool] in self.pool:
            in_pool += 1
        size = self.chunk // self.block
        end = in_pool // size * size
        while end + size <= len(keys) and keys[end + size - 1] in self.stored:
            end += size
        tails = range(end + 1, min(end + size, len(keys) + 1))
        best = max([end, *(one for one in tails if keys[one - 1] in self.stored)])
        return max(in_pool, best) * self.block

    def _keep(self, keys: list[int], num_prompt: int) -> None:
        size = self.chunk // self.block
        ends = {*range(size, len(keys) + 1, size), len(keys), (num_prompt - 1) // self.block}
        self.stored |= {keys[end - 1] for end in ends if end}
        for key in reversed(keys):  # the beginning is dropped last
            self.pool[key] = None
            self.pool.move_to_end(key)
        while len(self.pool) > self.pool_blocks:
            self.pool.popitem(last=False)
