"""`KVTransfers`: hands the reports of the KV store's threads to the scheduler, between two steps;
`MemoryAhead`: allocates memory for KV blocks before a request needs it.

The store's threads read and write places that may be slow, and copy blocks.
While requests run, these threads get a bounded share of the processor. The state of loads and
lookups is in `scheduler/stored_kv/loads.py`, the state of requests in `scheduler/states.py`; and
`scheduler/stored_kv/news.py` changes both when a load ends.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from quire.config.records import EngineConfig
from quire.core.capability import Capability
from quire.kvcache import KVCacheManager
from quire.kvcache.block_pool import BlockPool
from quire.kvstore.store import KVStore
from quire.log import get_logger
from quire.protocol import KVStoreStats, SchedulePlan, SchedulerStats
from quire.scheduler.stored_kv.commands import StoreCommands
from quire.scheduler.stored_kv.loads import PrefixLoads
from quire.scheduler.stored_kv.news import StoreNews
from quire.scheduler.stored_kv.saves import ChunkSaves

if TYPE_CHECKING:
    from quire.executor import Executor
    from quire.scheduler import Scheduler


logger = get_logger(__name__)

_STATS_S = 1.0
_SHARE_OF_A_STEP = 0.1
"""The part of a step's processor time that loads may take, so that a step is at most so much
slower."""


class BlockReader:
    """Copies blocks out of the pool."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def __call__(self, block_ids: list[int], group: int, kept: int, out: memoryview) -> bool:
        """Read blocks through `Executor.read_blocks`. False if the worker fails. Any thread."""
        try:
            self._executor.read_blocks(block_ids, group, kept, out)
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


class KVTransfers(Capability):
    """Takes in what the store has loaded. Used by the core's thread only."""

    def __init__(self, scheduler: Scheduler, store: KVStore) -> None:
        self._scheduler = scheduler
        self._store = store
        self._news = StoreNews(scheduler.states, scheduler.loads, store)
        self._next_stats = 0.0
        self._step_s = 0.0
        """The duration of the last step."""
        self._is_prepared = not store.is_read
        """Whether the store has the memory that a load takes besides blocks."""

    @property
    def commands(self) -> Mapping[str, Callable[..., Any]]:
        store = self._store
        prompts = StoreCommands(self._scheduler.kv, store)
        return {
            "kv_store_usage": store.stats,
            "kv_store_stats": lambda: {"sums": store.counts.as_dict(), "usage": store.usage()},
            "kv_store_flush": store.flush,
            "kv_store_clear": prompts.clear,
            "kv_store_pin": prompts.pin,
        }

    @property
    def is_active(self) -> bool:
        states = self._scheduler.states
        return bool(states.loading or states.looking)

    def advance(self, *, is_idle: bool) -> None:
        """Lets requests go on whose prefixes are loaded, or were not loaded in time."""
        if self._store.is_read:  # a load may begin in this step
            self._store.pace_loads(None if is_idle else _SHARE_OF_A_STEP * self._step_s)
        self._news.take(is_idle=is_idle)

    def has_idle_work(self) -> bool:
        return not self._is_prepared

    def use_idle_time(self) -> bool:
        """Makes the store take the memory for loads."""
        if self._is_prepared:
            return False
        self._is_prepared = True
        self._store.prepare()
        return True

    def observe(self, plan: SchedulePlan, duration_s: float) -> None:
        """Records how long a plan took: the store compares loading with computing."""
        self._step_s = duration_s
        self._store.compute.observe(sum(plan.num_scheduled_tokens), duration_s)

    def report(self, stats: SchedulerStats) -> None:
        """Reports once in a second, and when no step follows for a while."""
        now = time.monotonic()
        if now >= self._next_stats or not self._scheduler.has_unfinished_requests():
            self._next_stats = now + _STATS_S
            store = self._store
            stats.kv_store = KVStoreStats(sums=store.counts.as_dict(), usage=store.usage())

    def shutdown(self) -> None:
        """Writes what is queued and closes the store."""
        for load in self._scheduler.states.loading.values():
            load.job.close()
        self._store.close()

    def abandon(self) -> None:
        self._store.abandon()


def stored_kv(
    store: KVStore | None, kv: KVCacheManager, executor: Executor
) -> tuple[ChunkSaves | None, PrefixLoads | None]:
    """The parts of a scheduler that save to the store and load from it, if it does."""
    if store is None:
        return None, None
    saves = ChunkSaves(kv, store, BlockReader(executor))
    return saves, PrefixLoads(kv, store, BlockWriter(executor)) if store.is_read else None


_MOST_BYTES = 256 << 20
_PIECE_BYTES = 4 << 20
"""Bytes written at a time. A new request may have to wait for it, some milliseconds."""


class MemoryAhead(Capability):
    """Writes zeros to unused blocks that the pool will hand out next.

    The first write to a page takes several times as long as later ones, because the system, and the
    host of a virtual machine, must allocate and clear the page. A prompt, or K/V that is loaded,
    would wait for that. Memory is prepared for one request of the maximum length, at most 256 MiB;
    of a model with an encoder, for the rows of a sound, since its tokens come one at a time. Free
    blocks that are used again before fresh ones need none.
    """

    def __init__(
        self,
        config: EngineConfig,
        pool: BlockPool,
        write: Callable[[Sequence[int], memoryview], bool],
    ) -> None:
        """`write`: writes data to blocks; returns False if it fails."""
        cache = config.cache
        self._pool = pool
        self._write = write
        self._block_bytes = cache.block_bytes
        positions = config.model.num_sources or config.model.max_positions
        of_a_request = math.ceil(positions / cache.block_size)
        of_a_request *= len(cache.layout.groups)
        self._num_ahead = min(of_a_request, _MOST_BYTES // max(1, cache.block_bytes))
        if config.device.backend == "cuda":  # a GPU holds all of its memory from the start
            self._num_ahead = 0
        self._piece = max(1, _PIECE_BYTES // max(1, cache.block_bytes))
        self._end = 0
        """Id of the block after the last one that was written to."""

    def use_idle_time(self) -> bool:
        """Writes to some blocks."""
        blocks = self._next_piece()
        if not blocks:
            return False
        zeros = memoryview(bytes(len(blocks) * self._block_bytes))
        self._end = blocks.stop
        return self._write(blocks, zeros)

    def has_idle_work(self) -> bool:
        return bool(self._next_piece())

    def forget(self) -> None:
        """Starts again, because the memory of the pool was released to the system."""
        self._end = 0

    def _next_piece(self) -> range:
        first_fresh = self._pool.num_used
        first = max(self._end, first_fresh)
        num_ahead = self._num_ahead - self._pool.num_before_fresh
        end = min(first + self._piece, first_fresh + num_ahead, self._pool.num_blocks)
        return range(first, end)
