"""`RequestStates`: the state of each request, and the transitions between states.

Called by the scheduler, which decides on transitions. Of plans it knows only how many contain a
request.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from operator import attrgetter

from quire.kvcache import KVCacheManager
from quire.protocol import SchedulerStats
from quire.scheduler.request import Request, RequestQueue, RequestStatus
from quire.scheduler.stored_kv.loads import PrefixLoad
from quire.scheduler.stored_kv.saves import ChunkSaves
from quire.system import clock

_by_sort_key = attrgetter("sort_key")


@dataclass(slots=True)
class Counts:
    """Reset whenever `RequestStates.take_stats` copies them to a `SchedulerStats`."""

    num_preemptions: int = 0
    num_queried_tokens: int = 0
    """Prompt tokens looked up in the prefix cache."""
    num_hit_tokens: int = 0


class RequestStates:
    """Every unfinished request, and the requests that are leaving.

    A request is leaving if it was preempted or finished while plans in flight contain it: their
    steps still read and write its blocks, and their results go to its row in the worker. So it
    keeps both until the last of these plans is collected. Then it waits again, or is removed. A
    waiting request is in no plan, and results for a request that is not RUNNING are ignored.

    Invariants between steps: `running` is in policy order; each running request holds those
    blocks of its planned tokens that its next token attends to; a waiting request holds none.
    """

    def __init__(self, kv: KVCacheManager, saves: ChunkSaves | None = None) -> None:
        """`saves`: notified before a request releases its blocks."""
        self.by_id: dict[str, Request] = {}
        """Unfinished requests."""
        self.running: list[Request] = []
        self.waiting = RequestQueue()
        self.held: dict[str, Request] | None = None
        """New requests that may not start yet, in order of arrival; None: new requests may
        start."""
        self.awaiting_grammar: dict[str, Request] = {}
        """Requests whose grammar is being compiled, except held ones; and preempted requests whose
        next mask is being computed."""
        self.loading: dict[str, PrefixLoad] = {}
        """Requests whose prefixes are being loaded; they return to the queue afterwards."""
        self.looking: dict[str, Request] = {}
        """New requests for which a lookup in far tiers of the KV store is running."""
        self.leaving: set[Request] = set()
        self.counts = Counts()
        self._kv = kv
        self._saves = saves
        self._released: list[str] = []
        """Requests that have rows in the worker and that it must forget before the next step."""

    def add(self, request: Request) -> None:
        """Queues a new request, holds it, or keeps it until its grammar is ready."""
        self.by_id[request.request_id] = request
        if self.held is None:
            self._queue(request)
        else:
            self.held[request.request_id] = request

    def grammar_is_ready(self, request: Request) -> None:
        """The mask of the request's next token is ready: it may start or continue."""
        request.awaits_mask = False
        if request.status is RequestStatus.WAITING_FOR_FSM:
            request.status = RequestStatus.WAITING
        if self.awaiting_grammar.pop(request.request_id, None) is not None:
            self.waiting.push(request)

    def begin_load(self, load: PrefixLoad) -> None:
        """Takes a request out of the queue while K/V is loaded for it."""
        request = load.request
        self.waiting.remove(request)
        request.status = RequestStatus.WAITING_FOR_REMOTE_KVS
        request.may_load = False
        self.loading[request.request_id] = load

    def end_load(self, load: PrefixLoad) -> None:
        """Queues the request of a load again; the loaded blocks are in the prefix cache now."""
        request = load.request
        del self.loading[request.request_id]
        load.job.close()
        reservations = self._kv.reservations
        reservations.complete(load.reservation, load.written, request.blocks, request.token_ids)
        request.status = RequestStatus.WAITING
        self.waiting.push(request)

    def look_on(self, request: Request) -> None:
        """Lets a request whose load has ended wait for more of its prefix, to load that too."""
        self.waiting.remove(request)
        request.status = RequestStatus.WAITING_FOR_REMOTE_KVS
        request.may_load = True
        self.looking[request.request_id] = request

    def end_lookup(self, request_id: str) -> None:
        """Lets a request start after the lookup in far tiers; ignores unknown ids."""
        request = self.by_id.get(request_id)
        if request is None or request_id in self.loading:
            return
        if request.status is RequestStatus.WAITING_FOR_REMOTE_KVS:
            request.status = RequestStatus.WAITING
        if self.looking.pop(request_id, None) is not None:
            self.waiting.push(request)

    @property
    def num_idle(self) -> int:
        """Requests that cannot be planned now: held, or waiting for a grammar or for K/V."""
        num_waiting = len(self.awaiting_grammar) + len(self.loading) + len(self.looking)
        return self.num_held + num_waiting

    @property
    def num_sitting_out(self) -> int:
        """Running requests whose next mask is being computed."""
        return sum(request.awaits_mask for request in self.running)

    @property
    def num_held(self) -> int:
        """Number of held requests."""
        return len(self.held) if self.held else 0

    def hold_new(self) -> None:
        """Holds requests that arrive from now on. Idempotent."""
        self.held = self.held or {}

    def release_held(self) -> None:
        """Queues held requests; new ones are queued at once from now on. Idempotent."""
        held, self.held = self.held, None
        for request in (held or {}).values():
            self._queue(request)

    def start(self, request: Request, num_cached_tokens: int) -> None:
        """Starts a waiting request; its blocks begin with `num_cached_tokens` tokens."""
        self.waiting.remove(request)
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
        """Preempts a running request: it releases its blocks and computes its tokens again
        later."""
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
        """Ends a request whose status is final. It may still be in `running`, until
        `drop_finished`."""
        del self.by_id[request.request_id]
        self._leave(request)

    def drop_finished(self) -> None:
        """Removes requests whose status is final from `running`."""
        self.running = [request for request in self.running if not request.is_finished]

    def has_row(self, request_id: str) -> bool:
        """Whether the worker still has a row of a leaving request with this id."""
        return any(request.request_id == request_id for request in self.leaving)

    def collected(self, request: Request) -> None:
        """The result of a plan that contains this leaving request was collected."""
        if not request.num_plans_in_flight:
            self.leaving.remove(request)
            self._close(request)

    def take_released(self) -> list[str]:
        """Returns the requests that the worker must forget with the next plan, once each."""
        released, self._released = self._released, []
        return released

    def release_again(self, request_ids: list[str]) -> None:
        """Repeats the release of requests, because the worker may not have received it."""
        self._released += request_ids

    def take_stats(self) -> SchedulerStats:
        """Number of requests per state, and counts of events since the last call."""
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
        """Updates a snapshot after further requests have ended."""
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
        if request.num_plans_in_flight:
            self.leaving.add(request)
        else:
            self._close(request)

    def _close(self, request: Request) -> None:
        self._released.append(request.request_id)
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
