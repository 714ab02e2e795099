"""`Readers`: threads that find chunks in the tiers, nearest first, and copy them to the pool."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np

from quire.kvstore.chunk_file import HEADER_BYTES
from quire.kvstore.chunks import ChunkKey, ChunkShape
from quire.kvstore.costs import GuardedTier, StoreCounts
from quire.kvstore.jobs import LoadedChunk, LoadJob, LookupJob, StoredChunk
from quire.kvstore.tiers.base import Tier, TierError
from quire.kvstore.tiers.direct_io import page_memory
from quire.kvstore.write_behind import WriteBehind
from quire.log import get_logger

logger = get_logger(__name__)

_LOOKUP_PIECE = 64
"""Maximum number of whole chunks per query to a far tier."""
_Jobs = queue.SimpleQueue[Callable[[], None] | None]


class Readers:
    """Owned by the store. Results are put into the queue `news`, which the engine's thread empties.

    Loads stay within the processor time of `pace`. Queries run on a separate thread, so that they
    do not wait for loads.
    """

    def __init__(
        self,
        tiers: Sequence[GuardedTier],
        writes: WriteBehind,
        counts: StoreCounts,
        shape_of: Callable[[StoredChunk], ChunkShape],
        num_threads: int,
    ) -> None:
        self.news: queue.SimpleQueue[LoadedChunk | LookupJob] = queue.SimpleQueue()
        self.pace = ReadPace()
        self._tiers = tiers
        self._writes = writes
        self._counts = counts
        self._shape_of = shape_of
        self._loads: _Jobs = queue.SimpleQueue()
        self._asks: _Jobs = queue.SimpleQueue()
        self._local = threading.local()
        """`buffer`: memory of the thread for one chunk with its header. It is kept because
        allocating it takes longer than reading a chunk into it."""
        self._is_closing = False
        self._num_loading = num_threads
        self._threads = [self._start(f"kv-store-read-{i}", self._loads) for i in range(num_threads)]
        self._threads.append(self._start("kv-store-ask", self._asks))

    def load(self, job: LoadJob) -> None:
        """Read and copy the chunks of a job. Each chunk gives one result in `news`."""
        for index in range(len(job.chunks)):
            self._loads.put(partial(self._read, job, index))

    def look_up(self, job: LookupJob) -> None:
        """Query the far tiers; all tiers for awaited chunks. The job itself is put into `news`."""
        self._asks.put(partial(self._look_up, job))

    def prepare(self, num_bytes: int) -> None:
        """Have each loading thread allocate memory for chunks of `num_bytes` before the first
        load."""
        for _ in range(self._num_loading):
            self._loads.put(partial(self._touch_buffer, num_bytes))

    def connect(self) -> None:
        """Send a query to far tiers, so that no request waits for their connections."""
        self._asks.put(self._connect)

    def delete(self, keys: Sequence[ChunkKey]) -> None:
        """Delete chunks from every tier."""
        self._asks.put(partial(self._delete, keys))

    def clear(self, tiers: Sequence[Tier], folder: str | None) -> None:
        """Clear the tiers, or one folder of them."""
        self._asks.put(partial(self._clear, tiers, folder))

    def stop(self) -> None:
        """End the threads after their current jobs, without waiting. Idempotent."""
        self._is_closing = True
        self.pace.grant(None)
        for jobs in (self._loads, self._asks):
            for _ in self._threads:
                jobs.put(None)

    def close(self, timeout_s: float) -> None:
        """End the threads and wait for them. Idempotent."""
        self.stop()
        for thread in self._threads:
            thread.join(timeout_s)

    def _start(self, name: str, jobs: _Jobs) -> threading.Thread:
        thread = threading.Thread(target=self._run, args=(jobs,), name=name, daemon=True)
        thread.start()
        return thread

    def _run(self, jobs: _Jobs) -> None:
        while not self._is_closing:
            job = jobs.get()
            if job is None:
                return
            job()
            del job  # the job keeps the pool alive that it copies to

    def _read(self, load: LoadJob, index: int) -> None:
        """Load a chunk and always report a result: failures count as misses."""
        is_copied, tier = False, ""
        try:
            is_copied, tier = self._find_and_copy(load, index)
        except Exception:
            logger.exception("KV store: chunk %s was not read", load.chunks[index].key.name)
        if is_copied:
            self._counts.add("loaded_chunks", tier)
        self.news.put(LoadedChunk(load, index, is_copied, tier))

    def _find_and_copy(self, load: LoadJob, index: int) -> tuple[bool, str]:
        """Return whether the chunk was copied to its blocks, and the name of its tier."""
        with self.pace.turn(load.deadline, "read") as may_go:
            if not may_go or load.is_cancelled:
                return False, ""
            began = time.perf_counter()
            data, tier = self._find(load.chunks[index])
            seconds = time.perf_counter() - began
        if data is None:
            return False, ""
        for piece in range(load.num_pieces(index)):
            with self.pace.turn(load.deadline, "copy") as may_go:
                began = time.perf_counter()
                if not may_go or not load.copy(index, piece, data):
                    return False, ""
                seconds += time.perf_counter() - began
        if tier is None:
            return True, "queue"
        tier.loaded(len(data), seconds)
        return True, tier.name

    def _buffer(self, num_bytes: int) -> memoryview:
        """Return this thread's buffer, with at least `num_bytes`."""
        buffer: memoryview | None = getattr(self._local, "buffer", None)
        if buffer is None or len(buffer) < num_bytes:
            buffer = self._local.buffer = page_memory(num_bytes)
        return buffer

    def _touch_buffer(self, num_bytes: int) -> None:
        """Write to the buffer: the system allocates pages at the first write."""
        np.frombuffer(self._buffer(HEADER_BYTES + num_bytes), np.uint8).fill(0)

    def _connect(self) -> None:
        for tier in self._tiers:
            if not tier.tier.is_local:
                tier.find([ChunkKey(bytes(32), bytes(32), 0)])

    def _clear(self, tiers: Sequence[Tier], folder: str | None) -> None:
        for tier in tiers:
            try:
                tier.clear(folder)
            except TierError as error:
                logger.warning("KV store, %s: %s", tier.name, error)

    def _delete(self, keys: Sequence[ChunkKey]) -> None:
        for key in keys:
            for tier in self._tiers:
                tier.delete(key)

    def _find(self, chunk: StoredChunk) -> tuple[memoryview | None, GuardedTier | None]:
        """Return a chunk, which may be in this thread's buffer, and its tier. The tier is None if
        the chunk still waits to be written."""
        shape = self._shape_of(chunk)
        buffer = self._buffer(HEADER_BYTES + shape.num_bytes)
        data = self._writes.get(chunk.key)
        if data is not None and len(data) == shape.num_bytes:
            return data, None
        for tier in self._tiers:
            if tier.tier.is_local and not tier.contains([chunk.key])[0]:
                continue
            data = tier.read(chunk.key, shape, buffer)
            if data is not None:
                if not tier.tier.is_local:  # so that nearer tiers have it next time
                    self._promote(chunk.key, shape, data)
                return data, tier
        return None, None

    def _promote(self, key: ChunkKey, shape: ChunkShape, data: memoryview) -> None:
        if any(tier.tier.is_local for tier in self._tiers):
            self._writes.put(key, shape, bytes(data))  # a copy: the buffer is reused

    def _look_up(self, job: LookupJob) -> None:
        try:
            self._ask_far_tiers(job)
        except Exception:
            logger.exception("KV store: the lookup for %s failed", job.request_id)
        self.news.put(job)

    def _ask_far_tiers(self, job: LookupJob) -> None:
        """Query whole chunks up to the first one that no tier has, then the tails that may
        follow."""
        for start in range(0, len(job.wholes), _LOOKUP_PIECE):
            piece = job.wholes[start : start + _LOOKUP_PIECE]
            self._ask(job, [key for keys in piece for key in keys])
            missing = [not job.found.issuperset(keys) for keys in piece]
            if any(missing):
                self._ask(job, job.tails[start + missing.index(True)])
                return
        self._ask(job, job.tails[-1])

    def _ask(self, job: LookupJob, keys: Sequence[ChunkKey]) -> None:
        unknown = [key for key in keys if key not in job.found]
        for tier in self._tiers:
            is_asked = not tier.tier.is_local or job.awaited
            if unknown and is_asked and time.monotonic() < job.deadline:
                found = tier.find(unknown)
                job.found.update(key for key, there in zip(unknown, found, strict=True) if there)


_FORGETTING = 0.95
"""Decay per turn of the expected time of a turn, which follows the longest recent turn."""


class ReadPace:
    """A budget of processor time. Safe for threads.

    A turn first takes the expected time of its kind (the longest of the recent turns) from the
    budget; the difference is corrected at its end. So several threads can wait for a slow disk at
    the same time, while their total processor time stays within the budget.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._left_s: float | None = None
        """Remaining seconds. None: unlimited. Negative: more was used than granted."""
        self._expected_s: dict[str, float] = {}
        """Expected seconds by kind of turn."""

    def grant(self, seconds: float | None) -> None:
        """Set the budget to `seconds`. An unused rest is lost; an overdraft is subtracted. None:
        unlimited."""
        with self._changed:
            if seconds is not None:
                seconds += min(0.0, self._left_s or 0.0)
            self._left_s = seconds
            self._changed.notify_all()

    @contextmanager
    def turn(self, deadline: float, kind: str) -> Iterator[bool]:
        """Wait for budget, then charge the processor time of the body to it. Yields False if the
        deadline (`time.monotonic()`) passed first. `kind`: groups turns that take about the same
        time; the first turn of a kind takes the whole budget."""
        with self._changed:
            left_s = max(0.0, deadline - time.monotonic())
            may_go = self._changed.wait_for(self._has_some, left_s)
            taken_s = self._take(kind) if may_go else 0.0
        began_s = time.thread_time()
        try:
            yield may_go
        finally:
            used_s = time.thread_time() - began_s
            with self._changed:
                if may_go:
                    expected_s = _FORGETTING * self._expected_s.get(kind, 0.0)
                    self._expected_s[kind] = max(used_s, expected_s)
                if self._left_s is not None:
                    self._left_s += taken_s - used_s
                self._changed.notify_all()

    def _has_some(self) -> bool:
        return self._left_s is None or self._left_s > 0

    def _take(self, kind: str) -> float:
        if self._left_s is None:
            return 0.0
        seconds = self._expected_s.get(kind, self._left_s)
        self._left_s -= seconds
        return seconds
