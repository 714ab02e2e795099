"""`RequestStates`: which request is in which state, and the moves from one to the other.

Called by the scheduler, which decides who moves. Knows nothing of plans but how many have a
request.
"""

from __future__ import annotations

import bisect
from operator import attrgetter

from quire.kvcache import KVCacheManager
from quire.protocol import SchedulerStats
from quire.scheduler.counts import Counts
from quire.scheduler.queue import RequestQueue
from quire.scheduler.request import Request, RequestStatus
from quire.scheduler.stored_kv.loads import PrefixLoad
from quire.scheduler.stored_kv.saves import ChunkSaves
from quire.system import clock

_by_sort_key = attrgetter("sort_key")


class RequestStates:
    """Every unfinished request, and those that leave.

    A request leaves when it is preempted or finished while plans in flight have it: their steps
    still read and write its blocks, so it keeps these until the last of them is collected. Then
    it waits again, or is gone. No plan has a request that waits: what a plan brings for a request
    that is not RUNNING was computed before it left, and is void.

    Invariants between steps: `running` is in policy order; each running request holds the blocks
    of its planned tokens, as far as its next token sees them; a waiting one holds none.
    """

    def __init__(self, kv: KVCacheManager, saves: ChunkSaves | None = None) -> None:
        """`saves`: told of requests that give their blocks back."""
        self.by_id: dict[str, Request] = {}
        """The unfinished ones."""
        self.running: list[Request] = []
        self.waiting = RequestQueue()
        self.held: dict[str, Request] | None = None
        """New requests that may not start yet, in order of arrival; None: new ones may start."""
        self.awaiting_grammar: dict[str, Request] = {}
        """Requests whose grammar is being compiled, but for those that are held; and preempted ones
        whose next mask is being made."""
        self.loading: dict[str, PrefixLoad] = {}
        """Requests whose prefixes are being loaded; they come back to the queue."""
        self.looking: dict[str, Request] = {}
        """New requests for which far tiers of the KV store are asked."""
        self.leaving: set[Request] = set()
        self.counts = Counts()
        self._kv = kv
        self._saves = saves
        self._released: list[str] = []
        """What the worker has rows for and must forget before the next step."""

    def add(self, request: Request) -> None:
        """Queues a new request, or holds it, or keeps it until its grammar is there."""
        self.by_id[request.request_id] = request
        if self.held is None:
            self._queue(request)
        else:
            self.held[request.request_id] = request

    def grammar_is_ready(self, request: Request) -> None:
        """The mask of a request's next token is there: it may start, or go on."""
        request.awaits_mask = False
        if request.status is RequestStatus.WAITING_FOR_FSM:
            request.status = RequestStatus.WAITING
        if self.awaiting_grammar.pop(request.request_id, None) is not None:
            self.waiting.push(request)

    def begin_load(self, load: PrefixLoad) -> None:
        """The next waiting request waits for K/V instead."""
        request = self.waiting.pop()
        request.status = RequestStatus.WAITING_FOR_REMOTE_KVS
        request.may_load = False
        self.loading[request.request_id] = load

    def end_load(self, load: PrefixLoad) -> None:
        """A request is queued again; what was written of its prefix is in the prefix cache."""
        request = load.request
        del self.loading[request.request_id]
        load.job.close()
        self._kv.complete(load.reservation, load.written, request.blocks, request.token_ids)
        request.status = RequestStatus.WAITING
        self.waiting.push(request)

    def look_on(self, request: Request) -> None:
        """A request whose load has ended waits for more of its prefix, and loads that too."""
        self.waiting.remove(request)
        request.status = RequestStatus.WAITING_FOR_REMOTE_KVS
        request.may_load = True
        self.looking[request.request_id] = request

    def end_lookup(self, request_id: str) -> None:
        """A request for which far tiers were asked may start; unknown ids mean nothing."""
        request = self.by_id.get(request_id)
        if request is None or request_id in self.loading:
            return
        if request.status is RequestStatus.WAITING_FOR_REMOTE_KVS:
            request.status = RequestStatus.WAITING
        if self.looking.pop(request_id, None) is not None:
            self.waiting.push(request)

    @property
    def num_idle(self) -> int:
        """Requests for which nothing can be planned now: held, or waiting for others."""
        num_waiting = len(self.awaiting_grammar) + len(self.loading) + len(self.looking)
        return self.num_held + num_waiting

    @property
    def num_sitting_out(self) -> int:
        """Running requests whose next mask is being made."""
        return sum(request.awaits_mask for request in self.running)

    @property
    def num_held(self) -> int:
        """Requests that are held."""
        return len(self.held) if self.held else 0

    def hold_new(self) -> None:
        """Holds requests that come from now on. Idempotent."""
        self.held = self.held or {}

    def release_held(self) -> None:
        """Queues those that are held, and new ones from now on. Idempotent."""
        held, self.held = self.held, None
        for request in (held or {}).values():
            self._queue(request)

    def start(self, request: Request, num_cached_tokens: int) -> None:
        """Takes the next waiting request out of the queue; its blocks begin with cached tokens."""
        self.waiting.pop()
        if request.scheduled_time is None:
            request.scheduled_time = clock.now()
            request.num_cached_tokens = num_cached_tokens
            self.counts.num_queried_tokens += request.num_tokens
            self.counts.num_hit_tokens += num_cached_tokens
            request.limit_loaded_tokens(num_cached_tokens)
        request.status = RequestStatus.RUNNING
        request.num_computed_tokens = request.num_collected_tokens = num_cached_tokens
        bisect.insort(self.running, request, key=_by_sort_key)

    def preempt(self, request: Request) -> None:
        """Takes a running request's blocks back; it will compute its tokens again."""
        self.running.remove(request)
        request.status = RequestStatus.PREEMPTED
        request.is_generating = False
        request.may_load = not request.skip_reading_cache
        request.num_preemptions += 1
        self.counts.num_preemptions += 1
        self._leave(request)

    def finish(self, request: Request, status: RequestStatus) -> None:
        """Ends an unfinished request in any state."""
        if request.status is RequestStatus.RUNNING:
            self.running.remove(request)
            request.status = status
            self.finish_running(request)
            return
        if self.held and request.request_id in self.held:
            del self.held[request.request_id]
        elif request.request_id in self.awaiting_grammar:
            del self.awaiting_grammar[request.request_id]
        elif request.request_id in self.loading:
            self.end_load(self.loading[request.request_id])
            self.waiting.remove(request)
        elif request.request_id in self.looking:
            del self.looking[request.request_id]
        elif request not in self.leaving:
            self.waiting.remove(request)
        request.status = status
        del self.by_id[request.request_id]

    def finish_running(self, request: Request) -> None:
        """Ends a request whose status is final already and that `running` need not name."""
        del self.by_id[request.request_id]
        self._leave(request)

    def drop_finished(self) -> None:
        """Takes those out of `running` whose status is final."""
        self.running = [request for request in self.running if not request.is_finished]

    def collected(self, request: Request) -> None:
        """A plan that has a request which leaves was collected."""
        if not request.num_plans_in_flight:
            self.leaving.remove(request)
            self._close(request)

    def take_released(self) -> list[str]:
        """What the next plan tells the worker to forget; told once."""
        released, self._released = self._released, []
        return released

    def release_again(self, request_ids: list[str]) -> None:
        """The worker may not have been told of these."""
        self._released += request_ids

    def take_stats(self) -> SchedulerStats:
        """How many are in which state, and what happened since the last call."""
        counts, self.counts = self.counts, Counts()
        return SchedulerStats(
            num_running=len(self.running),
            num_waiting=len(self.by_id) - len(self.running),
            kv_cache_usage=self._kv.usage,
            num_prefix_queried_tokens=counts.num_queried_tokens,
            num_prefix_hit_tokens=counts.num_hit_tokens,
            num_preemptions=counts.num_preemptions,
        )

    def recount(self, stats: SchedulerStats) -> None:
        """Brings a snapshot up to date: requests have ended since."""
        stats.num_running = len(self.running)
        stats.num_waiting = len(self.by_id) - len(self.running)
        stats.kv_cache_usage = self._kv.usage

    def _queue(self, request: Request) -> None:
        if request.status is RequestStatus.WAITING_FOR_FSM:
            self.awaiting_grammar[request.request_id] = request
        elif request.status is RequestStatus.WAITING_FOR_REMOTE_KVS:
            self.looking[request.request_id] = request
        else:
            self.waiting.push(request)

    def _leave(self, request: Request) -> None:
        self._released.append(request.request_id)
        if request.num_plans_in_flight:
            self.leaving.add(request)
        else:
            self._close(request)

    def _close(self, request: Request) -> None:
        blocks, num_tokens = request.blocks, request.num_collected_tokens
        if request.status is not RequestStatus.FINISHED_ERROR:
            self._kv.offer(blocks, request.token_ids, num_tokens)
            planned = request.num_computed_tokens
            self._kv.offer_state(blocks, request.token_ids, num_tokens, planned)
            if self._saves is not None:
                self._saves.closing(request)
        self._kv.free(blocks, num_tokens)
        request.num_computed_tokens = request.num_collected_tokens = 0
        if request.status is RequestStatus.PREEMPTED:
            if request.awaits_mask:
                request.status = RequestStatus.WAITING_FOR_FSM
                self.awaiting_grammar[request.request_id] = request
            else:
                self.waiting.push(request)
