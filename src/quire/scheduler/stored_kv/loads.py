"""`PrefixLoads`: prefixes that the KV store has and the block pool has not.

Asked by `StepPlanner` for each request that could start. Decides what is loaded, and reserves the
blocks for it; the store's threads copy to them. A request is loaded for once before each start:
then it is admitted with whatever the prefix cache has.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter

from quire.config.kv_groups import KVGroupSpec
from quire.kvcache import BlockKey, CachedPrefix, KVCacheManager, Reservation
from quire.kvstore.chunks import ChunkKey
from quire.kvstore.jobs import CopyIn, LoadJob, LookupJob, StoredChunk
from quire.kvstore.store import KVStore
from quire.scheduler.request import Request

WriteBlocks = Callable[[Sequence[int], memoryview], bool]
"""Copies K/V to blocks of the pool that no step has, on any thread; False: that failed."""

_LOOKUP_SHARE, _SHORTEST_LOOKUP_S = 0.1, 0.05
"""So much of what computing would take a request waits for far tiers to say what they have."""
_LOOKUP_IF_UNKNOWN_S = 1.0
"""The same before anything was computed, when connections are made."""
_SHORTEST_DEADLINE_S = 0.25
_DEADLINE_IF_UNKNOWN_S = 5.0
"""Before anything was computed."""
_PATIENCE = 1.5
"""A load may take so many times as long as computing would."""


@dataclass(frozen=True, slots=True)
class ChunkPlaces:
    """A chunk, and where its blocks go."""

    chunk: StoredChunk
    end: int
    """The first entry of the block table behind it."""
    places: list[tuple[int, BlockKey]]
    """Of each block that the pool lacks: its index in the chunk, and its key in the pool."""


@dataclass(eq=False, slots=True)
class PrefixLoad:
    """A request that waits for K/V, and the blocks that are reserved for it."""

    request: Request
    job: LoadJob
    chunks: list[ChunkPlaces]
    """Parallel to the job's."""
    reservation: Reservation
    num_promised: int
    """Blocks that the request needs beside those."""
    num_left: int
    """Chunks of which nothing was heard yet."""
    written: list[BlockKey]
    """What is in the pool already."""
    awaited: LookupJob | None = None
    """What the request waits for after this: the rest is still being stored."""


class PrefixLoads:
    """Owned by the scheduler. One thread."""

    def __init__(self, kv: KVCacheManager, store: KVStore, write_blocks: WriteBlocks) -> None:
        self._kv = kv
        self._store = store
        self._write_blocks = write_blocks
        groups = enumerate(kv.layout.groups)
        self.leading_group = next((index for index, one in groups if one.window is None), 0)
        """One that needs every chunk of a prefix, if there is one."""
        self.lookups: dict[str, LookupJob] = {}
        """What far tiers are asked, by request."""
        self.begun: dict[str, LookupJob] = {}
        """Of requests that load a part of what they wait for, and are about to do so."""

    def plan(self, request: Request, prefix: CachedPrefix) -> PrefixLoad | None:
        """Reserves blocks for what the store has behind a cached prefix. None: nothing, or not
        enough to be worth it. The caller has checked that the request can start now."""
        awaited = self.begun.pop(request.request_id, None)
        found = self._find(request, prefix)
        if not found:
            return None
        kv, pool = self._kv, self._kv.pool
        num_tokens = (found[-1].end - prefix.num_entries) * kv.block_size
        patience_s = self._patience(num_tokens, [one.chunk for one in found])
        if patience_s is None:
            return None
        num_needed = pool.num_free - kv.num_free_after(request.num_tokens, prefix)
        num_free = pool.num_free
        keys = list(dict.fromkeys(key for one in found for _, key in one.places))
        reservation = kv.reserve(prefix, keys)
        job = LoadJob(
            request.request_id,
            [one.chunk for one in found],
            [self._copies(one, reservation) for one in found],
            time.monotonic() + patience_s,
        )
        load = PrefixLoad(
            request=request,
            job=job,
            chunks=found,
            reservation=reservation,
            num_promised=max(0, num_needed - (num_free - pool.num_free)),
            num_left=len(found),
            written=[],
            awaited=awaited,
        )
        self._store.load(job)
        self._store.touch([one.key for one in job.chunks])
        return load

    def must_look_up(self, request: Request) -> bool:
        """Whether tiers have to be asked before a new request starts: far ones, and all of them for
        what another engine is about to store. If so, they are."""
        if not request.may_load or request.has_grammar:
            return False
        awaited = self._awaited(request)
        if not (self._store.must_look_up or awaited):
            return False
        job = self._lookup(request)
        if awaited:
            job.awaited = awaited
            job.num_loaded = self._num_cached_chunks(request)
            job.deadline = time.monotonic() + self._seconds_to_compute(job)
        self.lookups[request.request_id] = job
        self._store.look_up(job)
        return True

    def look_again(self, job: LookupJob) -> None:
        """Asks again for what is awaited. While more of it comes, waiting is compared with
        computing the rest."""
        if len(job.found) > job.num_seen:
            job.num_seen = len(job.found)
            job.deadline = time.monotonic() + self._seconds_to_compute(job)
        self._store.look_up(job)

    def _awaited(self, request: Request) -> frozenset[ChunkKey]:
        """The chunks that another engine stores last of a request's prompt; none if none does, if
        the block pool has it all, or if its K/V has another name than that of this engine."""
        kv = self._kv
        last = (request.num_tokens - 1) // kv.block_size
        if request.awaited_kv is None or not last:
            return frozenset()
        keys = kv.keys_of(request.blocks, request.token_ids, last)
        if request.awaited_kv not in ("", keys[-1].hex()):
            self._store.counts.add("load_abandoned", "other_kv")
            return frozenset()
        if kv.get_computed_blocks(request.blocks, request.token_ids).num_entries == last:
            return frozenset()
        groups = range(len(kv.layout.groups))
        return frozenset(self._chunk(request, keys, last, group).key for group in groups)

    def _num_cached_chunks(self, request: Request) -> int:
        """Chunks of a prompt that the block pool has."""
        kv = self._kv
        num_entries = kv.get_computed_blocks(request.blocks, request.token_ids).num_entries
        return num_entries // self._store.chunk_blocks * len(kv.layout.groups)

    def _seconds_to_compute(self, job: LookupJob) -> float:
        """What is missing of a prompt."""
        missing = sum(1 for whole in job.wholes if not job.found.issuperset(whole))
        num_tokens = (missing + 1) * self._store.chunk_blocks * self._kv.block_size
        seconds = self._store.compute.seconds(num_tokens)
        return _DEADLINE_IF_UNKNOWN_S if seconds is None else max(_SHORTEST_DEADLINE_S, seconds)

    def _lookup(self, request: Request) -> LookupJob:
        kv, size = self._kv, self._store.chunk_blocks
        last = (request.num_tokens - 1) // kv.block_size
        keys = kv.keys_of(request.blocks, request.token_ids, last)
        groups = range(len(kv.layout.groups))

        def ending(ends: Iterable[int]) -> list[ChunkKey]:
            return [self._chunk(request, keys, end, group).key for end in ends for group in groups]

        wholes = [ending([end]) for end in range(size, last + 1, size)]
        tails = [
            ending(range(start + 1, min(start + size, last + 1)))
            for start in range(0, last + 1, size)
        ]
        compute_s = self._store.compute.seconds(request.num_tokens)
        wait_s = _LOOKUP_IF_UNKNOWN_S
        if compute_s is not None:
            wait_s = max(_SHORTEST_LOOKUP_S, _LOOKUP_SHARE * compute_s)
        return LookupJob(request.request_id, wholes, tails, time.monotonic() + wait_s)

    def _patience(self, num_tokens: int, chunks: Sequence[StoredChunk]) -> float | None:
        """Seconds that a load may take; None: computing is quicker."""
        compute_s = self._store.compute.seconds(num_tokens)
        if compute_s is None:
            return _DEADLINE_IF_UNKNOWN_S
        if not self._store.is_worth_loading(chunks, compute_s):
            self._store.counts.add("gate_skipped_tokens", "slower_than_computing", num_tokens)
            return None
        return max(_SHORTEST_DEADLINE_S, _PATIENCE * compute_s)

    def _copies(self, one: ChunkPlaces, reservation: Reservation) -> list[CopyIn]:
        """Of each block of a chunk that the pool lacks."""
        write, num_blocks = self._write_blocks, one.chunk.num_blocks
        return [
            partial(_copy_block, write, reservation.block_ids[key], place, num_blocks)
            for place, key in one.places
        ]

    def _find(self, request: Request, prefix: CachedPrefix) -> list[ChunkPlaces]:
        """What has to be loaded for the longest prefix that the store completes, in order of
        position; nothing if that is no longer than what is cached."""
        kv, size = self._kv, self._store.chunk_blocks
        last = (request.num_tokens - 1) // kv.block_size
        if last <= prefix.num_entries:
            return []
        keys = kv.keys_of(request.blocks, request.token_ids, last)
        for end in self._ends(request, keys, prefix.num_entries, size):
            found: list[ChunkPlaces] = []
            for index, group in enumerate(kv.layout.groups):
                of_group = self._of_group(request, keys, end, index, group)
                if of_group is None:
                    break
                found += of_group
            else:
                return sorted(found, key=attrgetter("end"))
        return []

    def _ends(
        self, request: Request, keys: Sequence[bytes], num_cached: int, size: int
    ) -> list[int]:
        """Where stored prefixes may end, the longest first, as far as one group tells."""
        group, end = self.leading_group, num_cached // size * size
        ends = []
        while end + size <= len(keys) and self._has(request, keys, end + size, group):
            end += size
            if end > num_cached:
                ends.append(end)
        tails = range(end + 1, min(end + size, len(keys) + 1))
        ends += [one for one in tails if one > num_cached and self._has(request, keys, one, group)]
        return ends[::-1]

    def _of_group(
        self, request: Request, keys: Sequence[bytes], end: int, index: int, group: KVGroupSpec
    ) -> list[ChunkPlaces] | None:
        """The chunks that a group needs for a prefix of `end` entries; None: not all are stored."""
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
                chunk = self._chunk(request, keys, stop, index)
                if not self._store.has(chunk.key):
                    return None
                found.append(ChunkPlaces(chunk, stop, places))
        return found

    def _chunk(self, request: Request, keys: Sequence[bytes], end: int, group: int) -> StoredChunk:
        """The chunk that ends with entry `end - 1`."""
        key = ChunkKey(request.blocks.namespace, keys[end - 1], group)
        return StoredChunk(key, (end - 1) % self._store.chunk_blocks + 1)

    def _has(self, request: Request, keys: Sequence[bytes], end: int, group: int) -> bool:
        return self._store.has(self._chunk(request, keys, end, group).key)


def _copy_block(
    write: WriteBlocks, block_id: int, place: int, num_blocks: int, data: memoryview
) -> bool:
    """The block at a place of a chunk of so many."""
    size = len(data) // num_blocks
    return write([block_id], data[place * size : (place + 1) * size])
