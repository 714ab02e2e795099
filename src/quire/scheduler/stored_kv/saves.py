"""`ChunkSaves`: gives the KV store the chunks whose K/V is computed.

Told by the scheduler of each request that advances, and by the states of each that gives its blocks
back. The blocks are copied at once: they are full, so that no step writes to them any more, and no
later plan has them yet.
"""

from __future__ import annotations

from collections.abc import Callable

from quire.kvcache import KVCacheManager
from quire.kvstore.chunks import ChunkKey
from quire.kvstore.jobs import StoredChunk
from quire.kvstore.store import KVStore
from quire.kvstore.tiers.base import Buffer
from quire.scheduler.request import NEVER_SAVED, Request

ReadBlocks = Callable[[list[int]], Buffer | None]
"""Copies blocks out of the pool; None: that failed."""


class ChunkSaves:
    """Owned by the scheduler. One thread."""

    def __init__(self, kv: KVCacheManager, store: KVStore, read_blocks: ReadBlocks) -> None:
        self._store = store
        self._read_blocks = read_blocks
        self._block_size = kv.block_size
        self._groups = kv.layout.groups
        self._size = store.chunk_blocks
        self._tokens = store.chunk_blocks * kv.block_size
        self._is_used = store.role != "kv_consumer" and kv.enable_caching

    def first_due(self, request: Request) -> int:
        """How many tokens of a new request have to be computed before there is anything to save."""
        return min(self._tokens, self._prompt_end(request)) if self._is_used else NEVER_SAVED

    def advanced(self, request: Request) -> None:
        """The request has computed at least `save_due` tokens: its further whole chunks, and what
        is left of its prompt, for those who send it again."""
        computed = request.num_collected_tokens
        for chunk in range(request.num_saved_chunks, computed // self._tokens):
            self._save(request, chunk * self._size, (chunk + 1) * self._size)
        request.num_saved_chunks = computed // self._tokens
        prompt_end = self._prompt_end(request)
        request.save_due = (request.num_saved_chunks + 1) * self._tokens
        if computed < prompt_end:
            request.save_due = min(request.save_due, prompt_end)
        elif request.save_due - self._tokens < prompt_end:
            self._save_tail(request, prompt_end)

    def _prompt_end(self, request: Request) -> int:
        """Where the full blocks end that the same prompt could begin with."""
        return (request.num_prompt_tokens - 1) // self._block_size * self._block_size

    def name_of_prompt(self, request: Request) -> str | None:
        """The key of the last block that another engine needs; None: nothing is stored."""
        end = self._prompt_end(request) // self._block_size
        return request.blocks.keys[end - 1].hex() if end and self._is_used else None

    def closing(self, request: Request) -> None:
        """The request is about to give its blocks back, and all its full blocks have keys: what is
        left behind its last whole chunk."""
        if self._is_used:
            self._save_tail(request, request.num_collected_tokens)
            self._store.touch(self._whole_chunks(request))

    def forget(self, request: Request) -> None:
        """The K/V of a request may be invalid: the store drops its chunks."""
        self._store.forget(self._whole_chunks(request))

    def _whole_chunks(self, request: Request) -> list[ChunkKey]:
        """Of all groups, in order of position."""
        blocks = request.blocks
        keys = blocks.keys[self._size - 1 :: self._size]
        groups = range(len(blocks.tables))
        return [ChunkKey(blocks.namespace, key, group) for key in keys for group in groups]

    def _save_tail(self, request: Request, num_tokens: int) -> None:
        """The full blocks of the first `num_tokens` that are behind the last whole chunk."""
        end = num_tokens // self._block_size
        self._save(request, end // self._size * self._size, end)

    def _save(self, request: Request, start: int, end: int) -> None:
        """The entries from `start` to `end` of every group, if the request has all that a token
        behind them sees. Blocks before that are never loaded, and stored as zeros: a request that
        began with a prefix hit does not have them."""
        blocks = request.blocks
        if end <= start or end > len(blocks.keys):
            return
        for group, first in enumerate(blocks.first_entries):
            key = ChunkKey(blocks.namespace, blocks.keys[end - 1], group)
            chunk = StoredChunk(key, end - start)
            seen = self._groups[group].first_entry(end * self._block_size, self._block_size)
            seen = min(max(start, seen), end)
            if first <= seen and self._store.wants(chunk):
                data = self._read_blocks(blocks.tables[group][seen - first : end - first])
                if data is not None:
                    unseen = bytes((seen - start) * self._store.shape.block_bytes)
                    self._store.save(chunk, unseen + bytes(data) if unseen else data)
