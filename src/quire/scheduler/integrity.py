"""The scheduler's invariants, checked by the tests after every step. No side effect."""

from __future__ import annotations

from collections.abc import Collection

from quire.errors import IntegrityError
from quire.scheduler.request import Request, RequestStatus


def check_requests(
    requests: Collection[Request], running: list[Request], num_waiting: int, block_size: int
) -> None:
    """Raises IntegrityError unless queues, progress and block tables agree."""
    if len(running) + num_waiting != len(requests):
        raise IntegrityError("running and waiting do not add up to the requests there are")
    if running != sorted(running, key=lambda request: request.sort_key):
        raise IntegrityError("running requests are out of order")
    for request in requests:
        num_slots = len(request.blocks.block_ids) * block_size
        if request.num_computed_tokens > num_slots:
            raise IntegrityError(f"{request.request_id} has computed more than it has blocks")
        if request.num_tokens != len(request.token_ids):
            raise IntegrityError(f"{request.request_id} has miscounted its tokens")
        if request.num_computed_tokens >= request.num_tokens:
            raise IntegrityError(f"{request.request_id} has nothing left to compute")
        if request.status is not RequestStatus.RUNNING and num_slots:
            raise IntegrityError(f"{request.request_id} waits and holds blocks")
