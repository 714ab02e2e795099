"""`KVTransfers`: what the KV store has loaded, taken in between two steps.

Owned by `EngineCore`. The store's threads read and write places that may be slow, and copy blocks.
While requests run, these threads have a bounded part of the processor.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from quire.kvstore.jobs import LoadedChunk, LookupJob
from quire.kvstore.store import KVStore
from quire.log import get_logger
from quire.protocol import KVStoreStats, SchedulePlan

if TYPE_CHECKING:
    from quire.executor import Executor
    from quire.scheduler import Scheduler
    from quire.scheduler.stored_kv.loads import PrefixLoad

logger = get_logger(__name__)

_LOOK_AGAIN_S = 0.02
"""Between two looks for what another engine is about to store."""
_FEWEST_CHUNKS = 8
"""What another engine has stored is loaded while it stores the rest, in parts of so many."""
_WAIT_S = 0.01
"""How long a turn waits for the store where nothing else can be done."""
_STATS_S = 1.0
_SHARE_OF_A_STEP = 0.1
"""So much of the time of a step loads may take from the processor: whoever waits for a step waits
at most so much longer."""


class BlockReader:
    """Copies blocks out of the pool."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def __call__(self, block_ids: list[int], group: int, num_tokens: int, out: memoryview) -> bool:
        """K/V of the first tokens of these blocks of a layer group, block after block, and zeros.
        False if the worker fails. Any thread."""
        try:
            self._executor.read_blocks(block_ids, group, num_tokens, out)
        except Exception:
            logger.exception("K/V could not be read for the KV store")
            return False
        return True


class BlockWriter:
    """Copies K/V into the pool."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def __call__(self, block_ids: Sequence[int], data: memoryview) -> bool:
        """To blocks that no step has. False if the worker fails. Any thread."""
        try:
            self._executor.write_blocks(block_ids, data)
        except Exception:
            logger.exception("blocks of the KV cache could not be written to")
            return False
        return True


class KVTransfers:
    """Takes in what the store has loaded. One thread, the core's."""

    def __init__(self, scheduler: Scheduler, executor: Executor, store: KVStore) -> None:
        self._scheduler = scheduler
        self._executor = executor
        self._store = store
        self._next_stats = 0.0
        self._step_s = 0.0
        """Of the last step."""
        self.is_prepared = not store.is_read
        """Whether the store has the memory that a load takes beside blocks."""
        self._again: deque[tuple[float, LookupJob]] = deque()
        """Lookups that are to be repeated, and when; in order."""

    def advance(self, *, may_wait: bool) -> None:
        """Lets requests go on whose prefixes are there, or did not come in time. `may_wait`: there
        is nothing else to do."""
        states = self._scheduler.states
        if self._store.is_read:  # a load may begin in this step
            self._store.pace_loads(None if may_wait else _SHARE_OF_A_STEP * self._step_s)
        end = time.monotonic() + _WAIT_S
        while time.monotonic() < end:
            is_awaited = may_wait and bool(states.loading or states.looking)
            news = self._store.take_news(_WAIT_S if is_awaited else 0.0)
            if news is None:
                break
            if isinstance(news, LookupJob):
                self._take_lookup(news)
            else:
                self._take(news)
            if may_wait and states.waiting:
                break  # a request may start
        self._end_overdue()
        self._look_again()

    def prepare(self) -> bool:
        """Has the store take the memory for loads. False: it has."""
        if self.is_prepared:
            return False
        self.is_prepared = True
        self._store.prepare()
        return True

    def observe(self, plan: SchedulePlan, duration_s: float) -> None:
        """A plan took so long: what is loaded is compared with this."""
        self._step_s = duration_s
        self._store.compute.observe(plan.total_num_scheduled_tokens, duration_s)

    def take_stats(self, *, is_last: bool = False) -> KVStoreStats | None:
        """What happened, once in a second; None in between, unless no step follows for a while
        (`is_last`)."""
        now = time.monotonic()
        if now < self._next_stats and not is_last:
            return None
        self._next_stats = now + _STATS_S
        return KVStoreStats(sums=self._store.counts.as_dict(), usage=self._store.usage())

    def close(self) -> None:
        """Writes what is queued and closes the store. Idempotent."""
        for load in self._scheduler.states.loading.values():
            load.job.close()
        self._store.close()

    def _take(self, loaded: LoadedChunk) -> None:
        load = self._scheduler.states.loading.get(loaded.job.request_id)
        if load is None or load.job is not loaded.job:
            return  # nobody waits for it any more
        load.num_left -= 1
        if loaded.is_copied:
            self._note(load, loaded)
        else:
            load.job.is_cancelled = True  # what comes after it is of no use
        if not load.num_left:
            self._end(load)

    def _note(self, load: PrefixLoad, loaded: LoadedChunk) -> None:
        """A chunk of a load is in the pool."""
        one = load.chunks[loaded.index]
        load.chunk_arrived()
        load.written += [key for _, key in one.places]
        loads = self._scheduler.loads
        if loads is not None and one.chunk.key.group == loads.leading_group:
            load.request.count_loaded(loaded.tier, one.num_tokens)
            self._store.counts.add("hit_tokens", loaded.tier, one.num_tokens)

    def _end(self, load: PrefixLoad) -> None:
        """All of it was heard of. Where it was a part of what the request waits for, it waits on,
        unless something was missing."""
        loads, states, job = self._scheduler.loads, self._scheduler.states, load.awaited
        is_whole = not load.job.is_cancelled
        states.end_load(load)
        if loads is not None and job is not None and is_whole and time.monotonic() < job.deadline:
            states.look_on(load.request)
            loads.lookups[job.request_id] = job
            loads.look_again(job)

    def _take_lookup(self, job: LookupJob) -> None:
        """A request that waits for another engine loads meanwhile what is there."""
        loads = self._scheduler.loads
        num_found = len(job.found)
        if job.is_complete:
            self._end_lookup(job)
        elif loads is not None and num_found >= job.num_loaded + _FEWEST_CHUNKS:
            job.num_loaded = num_found
            if loads.lookups.get(job.request_id) is job:
                loads.begun[job.request_id] = job
            self._end_lookup(job)
        else:
            self._again.append((time.monotonic() + _LOOK_AGAIN_S, job))

    def _look_again(self) -> None:
        """For what another engine is about to store, as long as a request waits for it."""
        loads, states = self._scheduler.loads, self._scheduler.states
        while self._again and self._again[0][0] <= time.monotonic():
            _, job = self._again.popleft()
            name = job.request_id
            if loads is not None and name in states.looking and loads.lookups.get(name) is job:
                loads.look_again(job)

    def _end_lookup(self, job: LookupJob) -> None:
        loads = self._scheduler.loads
        if loads is not None and loads.lookups.get(job.request_id) is job:
            del loads.lookups[job.request_id]
            self._scheduler.states.end_lookup(job.request_id)

    def _end_overdue(self) -> None:
        """Nobody waits for a slow tier longer than computing would take."""
        now, loads = time.monotonic(), self._scheduler.loads
        for load in [*self._scheduler.states.loading.values()]:
            if now > load.job.deadline:
                self._store.counts.add("load_abandoned", "deadline")
                self._scheduler.states.end_load(load)
        if loads is not None:
            for job in [*loads.lookups.values()]:
                if now > job.deadline:
                    self._end_lookup(job)
            for job in [*loads.begun.values()]:  # of requests that load nothing, or have ended
                if now > job.deadline:
                    del loads.begun[job.request_id]
