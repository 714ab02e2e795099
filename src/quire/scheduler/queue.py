"""`RequestQueue` and the scheduling policies: the order in which waiting requests are admitted.

Used by the one admission loop in `StepPlanner`, which decides whether a request is admitted.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter

from quire.config.records import SchedulingPolicy
from quire.protocol import EngineCoreRequest
from quire.scheduler.request import Request

SortKey = Callable[[EngineCoreRequest, int], tuple[float, ...]]
"""Sort key of a request, from its message and its arrival number. Smaller keys run earlier; no two
keys are equal. The first number is the request's `level`."""


def first_come(_message: EngineCoreRequest, number: int) -> tuple[float, ...]:
    """In order of arrival."""
    return (0, number)


def by_priority(message: EngineCoreRequest, number: int) -> tuple[float, ...]:
    """Lower `priority` first, then in order of arrival."""
    return (message.priority, message.arrival_time, number)


POLICIES: dict[SchedulingPolicy, SortKey] = {"fcfs": first_come, "priority": by_priority}


def level_of(policy: SchedulingPolicy, message: EngineCoreRequest) -> float:
    """The level of a request: one of a lower level does not wait for it."""
    return POLICIES[policy](message, 0)[0]


class RequestQueue:
    """Waiting requests in order of `sort_key`; a preempted request returns to its old place.

    Heaps with lazy removal: an entry of a removed request is dropped when it reaches the top, so
    that removing a request from a long queue takes O(1) time on average. Requests with an adapter
    have a heap of their own, because others may pass them while too many adapters are in use.
    """

    def __init__(self) -> None:
        self._heaps: dict[bool, list[tuple[tuple[float, ...], Request]]] = {False: [], True: []}
        """Without and with an adapter."""
        self._members: dict[str, Request] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Request]:
        """All members, in no particular order."""
        return iter(self._members.values())

    def push(self, request: Request) -> None:
        """Adds a request that is not a member."""
        self._members[request.request_id] = request
        heapq.heappush(self._heaps[bool(request.adapter)], (request.sort_key, request))

    def peek(self, kinds: Sequence[bool] = (False, True)) -> Request | None:
        """The next one; None: there is none. `kinds`: without and with an adapter."""
        heads = [head for kind in kinds if (head := self._head(self._heaps[kind])) is not None]
        return min(heads, key=attrgetter("sort_key"), default=None)

    def _head(self, heap: list[tuple[tuple[float, ...], Request]]) -> Request | None:
        while heap and self._members.get(heap[0][1].request_id) is not heap[0][1]:
            heapq.heappop(heap)
        return heap[0][1] if heap else None

    def remove(self, request: Request) -> None:
        """Removes a member from any place in the queue."""
        del self._members[request.request_id]
        kind = bool(request.adapter)
        if len(self._heaps[kind]) > 2 * len(self._members) + 64:
            members = [one for one in self._members.values() if bool(one.adapter) is kind]
            self._heaps[kind] = [(member.sort_key, member) for member in members]
            heapq.heapify(self._heaps[kind])
