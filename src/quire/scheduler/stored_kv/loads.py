"""`PrefixLoads`: loads prefixes that the KV store has and the block pool lacks.

`StepPlanner` calls it for each request that could start. It decides what is loaded, reserves the
blocks, and keeps track of lookups and loads; the store's threads copy to the blocks, and
`core/kv_transfers.py` passes on what they report. There is one load before each start of a request:
afterwards the request is admitted with the blocks that the prefix cache has.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from quire.kvcache import BlockKey, CachedPrefix, KVCacheManager, Reservation
from quire.kvstore.chunks import ChunkKey
from quire.kvstore.jobs import CopyIn, LoadedChunk, LoadJob, LookupJob, StoredChunk
from quire.scheduler.request import Request
from quire.scheduler.stored_kv.stored_prefixes import StoredPrefixes
from quire.scheduler.stored_kv.stored_states import ChunkPlaces

if TYPE_CHECKING:
    from quire.kvstore.store import KVStore

WriteBlocks = Callable[[Sequence[int], memoryview], bool]
"""Copies K/V to blocks of the pool that no step uses. Any thread. Returns False on failure."""

_LOOKUP_SHARE, _SHORTEST_LOOKUP_S = 0.1, 0.05
"""Time that a request waits for the lookup in far tiers: a share of the time to compute its prompt,
and a lower bound in seconds."""
_LOOKUP_IF_UNKNOWN_S = 1.0
"""The same while the computing speed is unknown; connections are opened at that time."""
_SHORTEST_DEADLINE_S = 0.25
_DEADLINE_IF_UNKNOWN_S = 5.0
"""Seconds that a load may take while the computing speed is unknown."""
_CHUNK_IF_UNKNOWN_S = 1.0
"""Seconds that a load waits for each chunk while the computing speed is unknown."""
_PATIENCE = 1.5
"""Longest duration of a load, relative to the time that computing would take."""
_LOOK_AGAIN_S = 0.02
"""Seconds between two lookups of what another engine is about to store."""
_FEWEST_CHUNKS = 8
"""Fewest chunks of a partial load, while another engine is still storing the rest."""


@dataclass(eq=False, slots=True)
class PrefixLoad:
    """A request that waits for K/V, and the blocks that are reserved for it."""

    request: Request
    job: LoadJob
    chunks: list[ChunkPlaces]
    """Parallel to the job's."""
    reservation: Reservation
    num_promised: int
    """Blocks that the request needs in addition to the reserved ones."""
    num_left: int
    """Chunks still pending."""
    written: list[BlockKey]
    """Keys of the blocks that are already written."""
    awaited: LookupJob | None = None
    """Lookup for which the request waits afterwards, because the rest is still being stored."""
    last_deadline: float | None = None
    """Each chunk that arrives extends the job's deadline, up to this `time.monotonic()`. None: the
    job's deadline is fixed."""

    def take(self, loaded: LoadedChunk) -> None:
        """Counts a chunk that arrived or failed. After a failure, the chunks that follow are
        useless, so the rest of the job is cancelled. Renews the deadline of a load whose computing
        time is unknown."""
        self.num_left -= 1
        if not loaded.is_copied:
            self.job.is_cancelled = True
            return
        self.written += [key for _, key in self.chunks[loaded.index].places]
        if self.last_deadline is not None:
            self.job.deadline = min(time.monotonic() + _CHUNK_IF_UNKNOWN_S, self.last_deadline)


class PrefixLoads:
    """Owned by the scheduler. One thread."""

    def __init__(self, kv: KVCacheManager, store: KVStore, write_blocks: WriteBlocks) -> None:
        self._kv = kv
        self._store = store
        self._write_blocks = write_blocks
        self._prefixes = StoredPrefixes(kv, store)
        self.asks_far = store.must_look_up
        """Whether new requests may need a lookup, not only those that another engine hands on."""
        self._lookups: dict[str, LookupJob] = {}
        """Running lookups, by request."""
        self._begun: dict[str, LookupJob] = {}
        """Lookups of requests that are about to load a part of what they wait for."""
        self._again: deque[tuple[float, LookupJob]] = deque()
        """Lookups that are to be repeated, and when; in order."""

    @property
    def leading_group(self) -> int:
        """A layer group that needs every chunk of a prefix, if there is one."""
        return self._prefixes.leading_group

    def plan(self, request: Request, prefix: CachedPrefix) -> PrefixLoad | None:
        """Reserves blocks for the K/V that the store has after a cached prefix, and begins to load
        it. None: there is none, or loading it is not worth it. The caller has checked that the
        request can start now."""
        awaited = self._begun.pop(request.request_id, None)
        found = self._prefixes.find(request, prefix)
        if not found or prefix.takes_state:  # without room for another state
            return None
        kv, pool = self._kv, self._kv.pool
        num_tokens = found[-1].end_tokens - prefix.num_tokens(kv.block_size)
        patience_s = self._patience(num_tokens, [one.chunk for one in found])
        if patience_s is None:
            return None
        num_needed = pool.num_free - kv.num_free_after(request.num_tokens, prefix)
        num_free = pool.num_free
        keys = list(dict.fromkeys(key for one in found for _, key in one.places))
        reservation = kv.reservations.reserve(prefix, keys)
        now, last_deadline = time.monotonic(), None
        if self._store.compute.seconds(num_tokens) is None:
            last_deadline, patience_s = now + patience_s, _CHUNK_IF_UNKNOWN_S
        job = LoadJob(
            request.request_id,
            [one.chunk for one in found],
            [self._copies(one, reservation) for one in found],
            now + patience_s,
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
            last_deadline=last_deadline,
        )
        self._store.load(job)
        self._store.touch([one.key for one in job.chunks])
        return load

    def must_look_up(self, request: Request) -> bool:
        """Begins a lookup if a new request needs one before it starts: in far tiers, or in all
        tiers for K/V that another engine is about to store. Returns whether it began one."""
        if not request.may_load or request.has_grammar:
            return False
        awaited = self._awaited(request)
        if not (self._store.must_look_up or awaited):
            return False
        job = self._lookup(request)
        if awaited:
            job.awaited = awaited
            job.deadline = time.monotonic() + self._seconds_to_compute(job)
        self._lookups[request.request_id] = job
        self._store.look_up(job)
        return True

    def take_lookup(self, job: LookupJob) -> bool:
        """Takes the answer to a lookup. Returns whether the request can continue: everything was
        found, or enough for a partial load while another engine stores the rest. Otherwise the
        lookup is repeated soon."""
        num_found = len(job.found)
        if not job.is_complete:
            if num_found < job.num_loaded + _FEWEST_CHUNKS:
                self._again.append((time.monotonic() + _LOOK_AGAIN_S, job))
                return False
            job.num_loaded = num_found
            if self._is_current(job):
                self._begun[job.request_id] = job
        return self.end_lookup(job)

    def end_lookup(self, job: LookupJob) -> bool:
        """Forgets a lookup. Returns False if its request does not wait for this lookup any more."""
        is_current = self._is_current(job)
        if is_current:
            del self._lookups[job.request_id]
        return is_current

    def look_on(self, job: LookupJob) -> None:
        """Continues a lookup after a partial load, to find the rest."""
        self._lookups[job.request_id] = job
        self._look_again(job)

    def look_again(self, waiting: Container[str]) -> None:
        """Repeats the lookups that are due, for requests that still wait."""
        while self._again and self._again[0][0] <= time.monotonic():
            _, job = self._again.popleft()
            if job.request_id in waiting and self._is_current(job):
                self._look_again(job)

    def overdue(self) -> list[LookupJob]:
        """Lookups whose deadline has passed: their requests stop waiting."""
        now = time.monotonic()
        for job in [*self._begun.values()]:  # their requests have ended, or load nothing
            if now > job.deadline:
                del self._begun[job.request_id]
        return [job for job in self._lookups.values() if now > job.deadline]

    def _is_current(self, job: LookupJob) -> bool:
        return self._lookups.get(job.request_id) is job

    def _look_again(self, job: LookupJob) -> None:
        """Repeats a lookup. If more chunks were found since, the deadline is extended by the time
        that computing the rest would take."""
        if len(job.found) > job.num_seen:
            job.num_seen = len(job.found)
            job.deadline = time.monotonic() + self._seconds_to_compute(job)
        self._store.look_up(job)

    def _awaited(self, request: Request) -> frozenset[ChunkKey]:
        """The last chunks of a prompt that another engine computes. Empty if no other engine does,
        if the block pool has the whole prompt, or if the other engine names its K/V differently."""
        kv = self._kv
        if not request.goes_on or request.num_tokens == 1:
            return frozenset()
        last = self._prefixes.last_entry(request)
        awaited = self._prefixes.tail(request)
        if not awaited:
            keys = kv.keys_of(request.blocks, request.token_ids, last)
            awaited = self._prefixes.keys_at(request, keys, last)
            awaited += self._prefixes.states_at(request, keys, last)
        if request.awaited_kv not in ("", awaited[0].digest.hex()):
            self._store.counts.add("load_abandoned", "other_kv")
            return frozenset()
        num_cached = self._cached(request).num_tokens(kv.block_size)
        return frozenset(() if num_cached == request.num_tokens - 1 else awaited)

    def _cached(self, request: Request) -> CachedPrefix:
        """The part of a prompt that the block pool has, with its tail."""
        return self._kv.get_computed_blocks(request.blocks, request.token_ids, with_tail=True)

    def _seconds_to_compute(self, job: LookupJob) -> float:
        """Estimated seconds to compute what a lookup has not found of a prompt."""
        missing = sum(1 for whole in job.wholes if not job.found.issuperset(whole))
        num_tokens = (missing + 1) * self._store.chunk_blocks * self._kv.block_size
        seconds = self._store.compute.seconds(num_tokens)
        return _DEADLINE_IF_UNKNOWN_S if seconds is None else max(_SHORTEST_DEADLINE_S, seconds)

    def _lookup(self, request: Request) -> LookupJob:
        """The lookup of the chunks of a prompt. If another engine stores them, chunks that the
        block pool has are left out, because the other engine may never store these."""
        kv, size = self._kv, self._store.chunk_blocks
        last = self._prefixes.last_entry(request)
        first = self._cached(request).num_entries // size * size if request.goes_on else 0
        keys = kv.keys_of(request.blocks, request.token_ids, last)
        of_groups, of_state = self._prefixes.keys_at, self._prefixes.states_at

        def tail(start: int) -> list[ChunkKey]:
            ends = range(start + 1, min(start + size, last + 1))
            with_state = range(max(1, start + 1 - size), ends.stop)
            found = [key for end in ends for key in of_groups(request, keys, end)]
            return found + [key for end in with_state for key in of_state(request, keys, end)]

        wholes = [of_groups(request, keys, end) for end in range(first + size, last + 1, size)]
        tails = [tail(start) for start in range(first, last + 1, size)]
        tails[-1] += self._prefixes.tail(request)
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
        """One copy function for each block of a chunk that the pool lacks."""
        write, num_blocks = self._write_blocks, one.chunk.num_blocks
        return [
            partial(_copy_block, write, reservation.block_ids[key], place, num_blocks)
            for place, key in one.places
        ]


def _copy_block(
    write: WriteBlocks, block_id: int, place: int, num_blocks: int, data: memoryview
) -> bool:
    """Copies the block at index `place` of a chunk of `num_blocks` blocks."""
    size = len(data) // num_blocks
    return write([block_id], data[place * size : (place + 1) * size])
