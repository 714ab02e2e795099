"""`StoreNews`: lets requests go on when the KV store has loaded their prefixes, or has found none.

Called between two steps, through `core/kv_transfers.py`. The store's threads report chunks and
lookups; a request that waits for them is started, waits for the rest, or computes its prompt.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from quire.kvstore.jobs import LoadedChunk, LookupJob

if TYPE_CHECKING:
    from quire.kvstore.store import KVStore
    from quire.scheduler.states import RequestStates
    from quire.scheduler.stored_kv.loads import PrefixLoad, PrefixLoads

_WAIT_S = 0.01
"""Seconds for which a turn waits for the store if there is nothing else to do."""


class StoreNews:
    """Takes in what the store reports. Used by the core's thread only."""

    def __init__(self, states: RequestStates, loads: PrefixLoads | None, store: KVStore) -> None:
        self._states = states
        self._loads = loads
        self._store = store

    def take(self, *, is_idle: bool) -> None:
        """Takes all reports; waits a moment for one if `is_idle` and requests wait for the
        store."""
        states = self._states
        end = time.monotonic() + _WAIT_S
        while time.monotonic() < end:
            is_awaited = is_idle and bool(states.loading or states.looking)
            news = self._store.take_news(_WAIT_S if is_awaited else 0.0)
            if news is None:
                break
            if isinstance(news, LookupJob):
                self._take_lookup(news)
            else:
                self._take(news)
            if is_idle and states.waiting:
                break  # a request may start
        self._end_overdue()
        if self._loads is not None:
            self._loads.look_again(states.looking)

    def _take(self, loaded: LoadedChunk) -> None:
        load = self._states.loading.get(loaded.job.request_id)
        if load is None or load.job is not loaded.job:
            return  # its request has ended or was started
        load.take(loaded)
        chunk, loads = load.chunks[loaded.index], self._loads
        is_counted = loads is not None and chunk.chunk.key.group == loads.leading_group
        if loaded.is_copied and is_counted:
            load.request.count_loaded(loaded.tier, chunk.num_tokens)
            self._store.counts.add("hit_tokens", loaded.tier, chunk.num_tokens)
        if not load.num_left:
            self._end(load)

    def _end(self, load: PrefixLoad) -> None:
        """Ends a load whose chunks were all looked for. If it was a part of what the request waits
        for, and complete, the request waits for the rest."""
        loads, states, job = self._loads, self._states, load.awaited
        is_whole = not load.job.is_cancelled
        states.end_load(load)
        if loads is not None and job is not None and is_whole and time.monotonic() < job.deadline:
            states.look_on(load.request)
            loads.look_on(job)

    def _take_lookup(self, job: LookupJob) -> None:
        loads = self._loads
        if loads is not None and loads.take_lookup(job):
            self._states.end_lookup(job.request_id)

    def _end_overdue(self) -> None:
        """Ends the waiting for a slow tier that takes longer than computing would."""
        now, loads, states = time.monotonic(), self._loads, self._states
        for load in [*states.loading.values()]:
            if now > load.job.deadline:
                self._store.counts.add("load_abandoned", "deadline")
                states.end_load(load)
        if loads is not None:
            for job in loads.overdue():
                loads.end_lookup(job)
                states.end_lookup(job.request_id)
