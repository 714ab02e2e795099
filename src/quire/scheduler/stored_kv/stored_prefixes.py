"""`StoredPrefixes`: finds the chunks of the KV store that extend the cached prefix of a request.

Used by `PrefixLoads`. Knows names and places of chunks, but no times, costs or threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from quire.config.kv_groups import KVGroup
from quire.kvcache import CachedPrefix, KVCacheManager, Tail
from quire.kvstore.chunks import ChunkKey
from quire.kvstore.jobs import StoredChunk
from quire.scheduler.stored_kv.stored_states import ChunkPlaces, StoredStates

if TYPE_CHECKING:
    from quire.kvstore.store import KVStore
    from quire.scheduler.request import Request


class StoredPrefixes:
    """Owned by `PrefixLoads`. One thread."""

    def __init__(self, kv: KVCacheManager, store: KVStore) -> None:
        self._kv = kv
        self._store = store
        groups = enumerate(kv.layout.groups)
        self._by_position = [(index, one) for index, one in groups if one.is_by_position]
        found = (index for index, one in self._by_position if one.keeps_all)
        self.leading_group = next(found, 0)
        """A layer group that needs every chunk of a prefix, if there is one; else 0."""
        self._states = None if kv.snapshots is None else StoredStates(kv, store)

    def find(self, request: Request, prefix: CachedPrefix) -> list[ChunkPlaces]:
        """The chunks to load for the longest prefix that the pool and the store have together, in
        order of position. Empty if it is not longer than the cached prefix."""
        last = self.last_entry(request)
        found = self._find_blocks(request, prefix, last)
        end = found[-1].end if found else prefix.num_entries
        if end == last and not prefix.tail:
            found += self._find_tail(request)
        return found

    def last_entry(self, request: Request) -> int:
        """Number of full blocks with which a request can start."""
        return (request.num_tokens - 1) // self._kv.block_size

    def chunk(self, request: Request, keys: Sequence[bytes], end: int, group: int) -> StoredChunk:
        """The chunk that ends with entry `end - 1`."""
        key = ChunkKey(request.blocks.namespace, keys[end - 1], group)
        return StoredChunk(key, (end - 1) % self._store.chunk_blocks + 1)

    def keys_at(self, request: Request, keys: Sequence[bytes], end: int) -> list[ChunkKey]:
        """The chunks that end with entry `end - 1`, in all groups that store by position."""
        return [self.chunk(request, keys, end, index).key for index, _ in self._by_position]

    def states_at(self, request: Request, keys: Sequence[bytes], end: int) -> list[ChunkKey]:
        """The chunks of the state of recurrent layers after `end` entries."""
        if self._states is None or not end:
            return []
        return self._states.keys(request.blocks.namespace, keys[end - 1])

    def tail(self, request: Request) -> list[ChunkKey]:
        """The chunks of the tail that another engine stores, in all groups. Empty if no other
        engine does, or without a tail."""
        tail = self._tail(request)
        groups = range(len(self._kv.layout.groups))
        namespace = request.blocks.namespace
        return [] if tail is None else [ChunkKey(namespace, tail.digest, one) for one in groups]

    def _tail(self, request: Request) -> Tail | None:
        if not request.goes_on:
            return None
        return self._kv.tail_of(request.blocks, request.token_ids, request.num_tokens)

    def _find_tail(self, request: Request) -> list[ChunkPlaces]:
        """The chunks of a tail, each of one block; empty unless the store has them in all
        groups."""
        tail, chunks, end = self._tail(request), self.tail(request), self.last_entry(request) + 1
        if tail is None or not all(self._store.has(key) for key in chunks):
            return []
        return [
            ChunkPlaces(
                StoredChunk(key, 1),
                end,
                request.num_tokens - 1,
                [(0, tail.key(key.group))],
                tail.num_tokens,
            )
            for key in chunks
        ]

    def _find_blocks(self, request: Request, prefix: CachedPrefix, last: int) -> list[ChunkPlaces]:
        """The full blocks of `find`."""
        if last <= prefix.num_entries:
            return []
        keys = self._kv.keys_of(request.blocks, request.token_ids, last)
        for end in self._ends(request, keys, prefix.num_entries):
            found: list[ChunkPlaces] = []
            for index, group in self._by_position:
                of_group = self._of_group(request, keys, end, index, group)
                if of_group is None:
                    break
                found += of_group
            else:
                of_state = self._of_state(request, keys, end, prefix.num_entries)
                if of_state is not None:
                    return sorted(found, key=attrgetter("end")) + of_state
        return []

    def _of_state(
        self, request: Request, keys: Sequence[bytes], end: int, num_cached: int
    ) -> list[ChunkPlaces] | None:
        """The chunks of the state after `end` entries; None if they are not stored."""
        if self._states is None:
            return []
        return self._states.places(request.blocks.namespace, keys, end, num_cached)

    def _ends(self, request: Request, keys: Sequence[bytes], num_cached: int) -> list[int]:
        """Possible ends of stored prefixes, longest first, as judged by the leading group. Blocks
        of the pool count as well, because they may still wait there to be stored."""
        if self._states is not None:
            return self._ends_with_state(request, keys, num_cached, self._states)
        end = self._end_of_whole(request, keys, num_cached)
        size, group = self._store.chunk_blocks, self.leading_group
        ends = [one for one in range(size, end + 1, size) if one > num_cached]
        short = range(end + 1, min(end + size, len(keys) + 1))
        ends += [one for one in short if one > num_cached and self._has(request, keys, one, group)]
        return ends[::-1]

    def _ends_with_state(
        self, request: Request, keys: Sequence[bytes], num_cached: int, states: StoredStates
    ) -> list[int]:
        """The same with recurrent layers, whose state is known after some entries only."""
        last = len(keys)
        if self._by_position:
            whole = self._end_of_whole(request, keys, num_cached)
            last = min(last, whole + self._store.chunk_blocks - 1)
        namespace, ends = request.blocks.namespace, range(last, num_cached, -1)
        return [end for end in ends if states.is_known(namespace, keys[end - 1])]

    def _end_of_whole(self, request: Request, keys: Sequence[bytes], num_cached: int) -> int:
        """End of the whole chunks of the leading group that follow a cached prefix."""
        size, group, pool = self._store.chunk_blocks, self.leading_group, self._kv.pool

        def is_there(start: int) -> bool:
            in_pool = (pool.lookup((group, key)) is not None for key in keys[start : start + size])
            return self._has(request, keys, start + size, group) or all(in_pool)

        end = num_cached // size * size
        while end + size <= len(keys) and is_there(end):
            end += size
        return end

    def _of_group(
        self, request: Request, keys: Sequence[bytes], end: int, index: int, group: KVGroup
    ) -> list[ChunkPlaces] | None:
        """The chunks that a group needs for a prefix of `end` entries; None if one is not
        stored."""
        kv, size = self._kv, self._store.chunk_blocks
        first = group.first_entry(end * kv.block_size, kv.block_size)
        found = []
        for start in range(first // size * size, end, size):
            stop = min(start + size, end)
            places = [
                (entry - start, (index, keys[entry]))
                for entry in range(max(start, first), stop)
                if kv.pool.lookup((index, keys[entry])) is None
            ]
            if places:
                chunk = self.chunk(request, keys, stop, index)
                if not self._store.has(chunk.key):
                    return None
                num_tokens = len(places) * kv.block_size
                found.append(ChunkPlaces(chunk, stop, stop * kv.block_size, places, num_tokens))
        return found

    def _has(self, request: Request, keys: Sequence[bytes], end: int, group: int) -> bool:
        return self._store.has(self.chunk(request, keys, end, group).key)
