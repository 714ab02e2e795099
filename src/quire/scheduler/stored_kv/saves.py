"""`ChunkSaves`: offers computed chunks of K/V to the KV store.

Called by the scheduler when a request advances, and by `RequestStates` before a request releases
its blocks. The blocks are full, so that no step writes to them until they are reused: the store
copies them later, and `BlockPool.before_reuse` notifies it before a block is reused. In a block
that is not full, steps write only after the tokens that are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from quire.kvcache import KVCacheManager, SequenceBlocks, Tail
from quire.kvstore.chunks import ChunkKey
from quire.kvstore.jobs import StoredChunk
from quire.scheduler.request import NEVER_SAVED, Request
from quire.scheduler.stored_kv.stored_states import StoredStates

if TYPE_CHECKING:
    from quire.kvstore.store import KVStore

ReadBlocks = Callable[[list[int], int, int, memoryview], bool]
"""Arguments: block ids, layer group, number of tokens, output. Copies the first tokens of each
block, and zeros in place of the others, to memory of the blocks' size. Any thread. Returns False on
failure."""


class ChunkSaves:
    """Owned by the scheduler. One thread."""

    def __init__(self, kv: KVCacheManager, store: KVStore, read_blocks: ReadBlocks) -> None:
        self._kv = kv
        self._store = store
        self._read_blocks = read_blocks
        self._block_size = kv.block_size
        self._groups = kv.layout.groups
        self._size = store.chunk_blocks
        self._tokens = store.chunk_blocks * kv.block_size
        self._is_used = store.role != "kv_consumer" and kv.enable_caching
        self._states = None if kv.snapshots is None else StoredStates(kv, store)
        if self._is_used:
            kv.pool.before_reuse = store.before_reuse
            if kv.snapshots is not None:
                kv.snapshots.taken = self._save_state

    def first_due(self, request: Request) -> int:
        """Number of computed tokens of a new request at which the first chunk can be saved."""
        return min(self._tokens, self._prompt_end(request)) if self._is_used else NEVER_SAVED

    def advanced(self, request: Request) -> None:
        """Saves further whole chunks of a request that has computed at least `save_due` tokens, and
        the end of its prompt, for requests with the same prompt."""
        computed = request.num_collected_tokens
        for chunk in range(request.num_saved_chunks, computed // self._tokens):
            self._save(request.blocks, chunk * self._size, (chunk + 1) * self._size)
        request.num_saved_chunks = computed // self._tokens
        prompt_end = self._prompt_end(request)
        request.save_due = (request.num_saved_chunks + 1) * self._tokens
        if computed < prompt_end:
            request.save_due = min(request.save_due, prompt_end)
        elif request.save_due - self._tokens < prompt_end:
            self._save_end(request.blocks, prompt_end)
        if request.hands_off:
            self._hand_off(request)

    def _prompt_end(self, request: Request) -> int:
        """End of the full blocks that a request with the same prompt could reuse, in tokens."""
        return (request.num_prompt_tokens - 1) // self._block_size * self._block_size

    def name_of_prompt(self, request: Request) -> str | None:
        """The last key of the prompt, of its tail or its last full block, which another engine
        waits for. None: nothing is stored."""
        if not self._is_used:
            return None
        tail = self._tail(request)
        end = self._prompt_end(request) // self._block_size
        if tail is not None:
            return tail.digest.hex()
        return request.blocks.keys[end - 1].hex() if end else None

    def closing(self, request: Request) -> None:
        """Saves the full blocks after the last whole chunk of a request that is about to release
        its blocks. All its full blocks have keys."""
        if self._is_used:
            self._save_end(request.blocks, request.num_collected_tokens)
            self._store.touch(self._whole_chunks(request))

    def leave_pool(self) -> None:
        """Prepares for the release of the block pool's memory."""
        self._store.leave_pool()

    def forget(self, request: Request) -> None:
        """Drops the stored chunks of a request, because its K/V may be invalid. A chunk may end
        with any of its blocks."""
        chunks = self._chunks_at(request, request.blocks.keys)
        if request.hands_off or request.goes_on:
            chunks += self._tail_chunks(request)
        self._store.forget(chunks)

    def _whole_chunks(self, request: Request) -> list[ChunkKey]:
        """Keys of the whole chunks in all groups, in order of position."""
        return self._chunks_at(request, request.blocks.keys[self._size - 1 :: self._size])

    def _chunks_at(self, request: Request, keys: Sequence[bytes]) -> list[ChunkKey]:
        """Keys of the chunks that end with these blocks, in all groups."""
        blocks = request.blocks
        groups = range(len(blocks.tables))
        return [ChunkKey(blocks.namespace, key, group) for key in keys for group in groups]

    def _tail(self, request: Request) -> Tail | None:
        """The tail of the prompt, which another engine needs."""
        return self._kv.tail_of(request.blocks, request.token_ids, request.num_prompt_tokens)

    def _tail_chunks(self, request: Request) -> list[ChunkKey]:
        """Keys of the tail's chunks in all groups; empty without a tail."""
        tail = self._tail(request)
        return [] if tail is None else self._chunks_at(request, [tail.digest])

    def _hand_off(self, request: Request) -> None:
        """Stores the end of the prompt for another engine, once it is computed: the full blocks up
        to the end of the prompt, even if their chunk will be longer, and the tail."""
        end = request.num_prompt_tokens - 1
        if request.num_collected_tokens < end:
            request.save_due = min(request.save_due, end)
            return
        self._save_end(request.blocks, self._prompt_end(request))
        tail, blocks = self._tail(request), request.blocks
        if tail is None:
            return
        entry = end // self._block_size
        for key, first, table in zip(
            self._tail_chunks(request), blocks.first_entries, blocks.tables, strict=True
        ):
            chunk = StoredChunk(key, 1)
            if first <= entry and self._store.wants(chunk):
                block_ids = [table[entry - first]]
                copy = partial(self._read_blocks, block_ids, key.group, tail.num_tokens)
                self._store.save(chunk, block_ids, copy)

    def _save_end(self, blocks: SequenceBlocks, num_tokens: int) -> None:
        """Saves those full blocks of the first `num_tokens` that follow the last whole chunk."""
        end = num_tokens // self._block_size
        self._save(blocks, end // self._size * self._size, end)

    def _save_state(self, blocks: SequenceBlocks, end: int, block_ids: list[int]) -> None:
        """Saves the state of recurrent layers after `end` entries, which a snapshot holds, and the
        K/V with which another request can use it."""
        states = self._states
        if states is None or not states.is_wanted(blocks, end):
            return
        self._save_end(blocks, end * self._block_size)
        first = 0
        for chunk in states.chunks(blocks.namespace, blocks.keys[end - 1]):
            own = block_ids[first : first + chunk.num_blocks]
            if self._store.wants(chunk):
                copy = partial(self._read_blocks, own, states.index, first)
                self._store.save(chunk, own, copy)
            first += chunk.num_blocks

    def _save(self, blocks: SequenceBlocks, start: int, end: int) -> None:
        """Saves the entries from `start` to `end` of every group, if the request has all blocks
        that the token after them attends to. Earlier blocks are stored as zeros and never loaded: a
        request that began with a prefix hit does not have them."""
        if end <= start or end > len(blocks.keys):
            return
        for group, first in enumerate(blocks.first_entries):
            if not self._groups[group].is_by_position:
                continue
            key = ChunkKey(blocks.namespace, blocks.keys[end - 1], group)
            chunk = StoredChunk(key, end - start)
            seen = self._groups[group].first_entry(end * self._block_size, self._block_size)
            seen = min(max(start, seen), end)
            if first <= seen and self._store.wants(chunk):
                block_ids = blocks.tables[group][seen - first : end - first]
                num_unseen_bytes = (seen - start) * self._store.shape.block_bytes
                copy = partial(self._copy, block_ids, group, num_unseen_bytes)
                self._store.save(chunk, block_ids, copy)

    def _copy(
        self, block_ids: list[int], group: int, num_unseen_bytes: int, out: memoryview
    ) -> bool:
        """Copies the K/V of a chunk, after zeros for the blocks that are not needed. Any thread."""
        out[:num_unseen_bytes] = bytes(num_unseen_bytes)
        return self._read_blocks(block_ids, group, self._block_size, out[num_unseen_bytes:])
