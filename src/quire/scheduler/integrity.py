"""The scheduler's invariants, checked by the tests after every step. No side effect."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from quire.errors import IntegrityError
from quire.kvcache import KVCacheManager
from quire.scheduler.in_flight import PlanInFlight
from quire.scheduler.request import Request, RequestStatus

if TYPE_CHECKING:
    from quire.scheduler.states import RequestStates


def check_states(
    states: RequestStates,
    in_flight: Iterable[PlanInFlight],
    kv: KVCacheManager,
    most_drafts: int = 0,
) -> None:
    """Raises IntegrityError unless queues, plans, progress and block tables agree. `most_drafts`:
    for how many draft tokens a request has blocks at most."""
    requests, running = states.by_id.values(), states.running
    num_preempted = sum(not request.is_finished for request in states.leaving)
    num_waiting = len(states.waiting) + states.num_idle
    if len(running) + num_waiting + num_preempted != len(requests):
        raise IntegrityError("running, waiting and held requests do not add up to all requests")
    if any(one.status is RequestStatus.WAITING_FOR_FSM for one in (*running, *states.waiting)):
        raise IntegrityError("a request that waits for its grammar may start")
    if running != sorted(running, key=lambda request: request.sort_key):
        raise IntegrityError("running requests are out of order")
    num_plans = Counter(request for step in in_flight for request in step.requests)
    if any(
        request.num_plans_in_flight != num_plans[request] for request in {*requests, *num_plans}
    ):
        raise IntegrityError("the plans in flight are miscounted")
    if any(
        one.status is not RequestStatus.RUNNING and one not in states.leaving for one in num_plans
    ):
        raise IntegrityError("a plan in flight has a request that waits or is unknown")
    for request in requests:
        _check_progress(request)
        if request in num_plans or request.status is RequestStatus.RUNNING:
            _check_seen(request, kv, most_drafts)
        elif request.blocks.num_held:
            raise IntegrityError(f"{request.request_id} waits and holds blocks")


def _check_progress(request: Request) -> None:
    if request.num_tokens != len(request.token_ids):
        raise IntegrityError(f"{request.request_id} has a wrong num_tokens")
    if request.num_collected_tokens >= request.num_tokens:
        raise IntegrityError(f"{request.request_id} has nothing left to compute")
    if request.num_collected_tokens > request.num_computed_tokens:
        raise IntegrityError(f"{request.request_id} has more collected than planned tokens")
    num_drafts = request.num_drafts_in_flight
    if request.has_grammar and request.num_computed_tokens > request.num_tokens + num_drafts:
        raise IntegrityError(f"{request.request_id} is planned before its grammar knows its tokens")
    if request.awaits_mask and (not request.has_grammar or request.num_plans_in_flight):
        raise IntegrityError(f"{request.request_id} is planned before its mask is computed")
    is_ahead = request.num_computed_tokens > request.num_collected_tokens
    if is_ahead != (request.num_plans_in_flight > 0):
        raise IntegrityError(f"{request.request_id} has planned tokens but is in no plan in flight")


def _check_seen(request: Request, kv: KVCacheManager, most_drafts: int) -> None:
    """In every layer group, the request must hold the blocks that its next token attends to, and
    no more than `most_blocks`. It keeps the blocks of draft tokens that were rejected, because its
    next tokens fill them."""
    blocks = request.blocks
    longest = max(request.num_tokens, request.num_computed_tokens) + most_drafts
    longest = min(longest, request.max_total_tokens)
    for group, first, table in zip(
        kv.layout.groups, blocks.first_entries, blocks.tables, strict=True
    ):
        end = group.num_entries(request.num_computed_tokens, kv.block_size)
        if first + len(table) < end:
            raise IntegrityError(f"{request.request_id} has computed more than it has blocks")
        if first > group.first_entry(request.num_collected_tokens, kv.block_size):
            raise IntegrityError(f"{request.request_id} gave back what its next token sees")
        if len(table) > group.most_blocks(longest, kv.max_chunk, kv.block_size):
            raise IntegrityError(f"{request.request_id} holds more blocks than it ever needs")
