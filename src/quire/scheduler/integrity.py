"""The scheduler's invariants, checked by the tests after every step. No side effect."""

from __future__ import annotations

from collections.abc import Collection

from quire.errors import IntegrityError
from quire.kvcache import KVCacheManager
from quire.scheduler.request import Request, RequestStatus


def check_requests(
    requests: Collection[Request], running: list[Request], num_waiting: int, kv: KVCacheManager
) -> None:
    """Raises IntegrityError unless queues, progress and block tables agree."""
    if len(running) + num_waiting != len(requests):
        raise IntegrityError("running and waiting do not add up to the requests there are")
    if running != sorted(running, key=lambda request: request.sort_key):
        raise IntegrityError("running requests are out of order")
    for request in requests:
        if request.num_computed_tokens > request.blocks.num_entries * kv.block_size:
            raise IntegrityError(f"{request.request_id} has computed more than it has blocks")
        _check_seen(request, kv)
        if request.num_tokens != len(request.token_ids):
            raise IntegrityError(f"{request.request_id} has miscounted its tokens")
        if request.num_computed_tokens >= request.num_tokens:
            raise IntegrityError(f"{request.request_id} has nothing left to compute")
        if request.status is not RequestStatus.RUNNING and request.blocks.num_held:
            raise IntegrityError(f"{request.request_id} waits and holds blocks")


def _check_seen(request: Request, kv: KVCacheManager) -> None:
    """Of each group the request holds what its next token sees, and no more than was counted on."""
    blocks = request.blocks
    for group, first, table in zip(
        kv.layout.groups, blocks.first_entries, blocks.tables, strict=True
    ):
        if first > group.first_entry(request.num_computed_tokens, kv.block_size):
            raise IntegrityError(f"{request.request_id} gave back what its next token sees")
        if len(table) > group.most_blocks(request.num_tokens, kv.max_chunk, kv.block_size):
            raise IntegrityError(f"{request.request_id} holds more blocks than it ever needs")
