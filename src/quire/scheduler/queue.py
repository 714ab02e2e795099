"""`RequestQueue` and the scheduling policies: the order in which waiting requests are admitted.

Used by the one admission loop in `StepPlanner`, which decides whether a request is admitted.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

from quire.config.records import SchedulingPolicy
from quire.protocol import EngineCoreRequest
from quire.scheduler.request import Request

SortKey = Callable[[EngineCoreRequest, int], tuple[float, ...]]
"""Sort key of a request, from its message and its arrival number. Smaller keys run earlier; no two
keys are equal."""


def first_come(_message: EngineCoreRequest, number: int) -> tuple[float, ...]:
    """In order of arrival."""
    return (number,)


def by_priority(message: EngineCoreRequest, number: int) -> tuple[float, ...]:
    """Lower `priority` first, then in order of arrival."""
    return (message.priority, message.arrival_time, number)


POLICIES: dict[SchedulingPolicy, SortKey] = {"fcfs": first_come, "priority": by_priority}


class RequestQueue:
    """Waiting requests in order of `sort_key`; a preempted request returns to its old place.

    A heap with lazy removal: an entry of an aborted request is dropped when it reaches the top,
    so that removing a request from a long queue takes O(1) time on average.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[float, ...], Request]] = []
        self._members: dict[str, Request] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Request]:
        """All members, in no particular order."""
        return iter(self._members.values())

    def push(self, request: Request) -> None:
        """Adds a request that is not a member."""
        self._members[request.request_id] = request
        heapq.heappush(self._heap, (request.sort_key, request))

    def peek(self) -> Request:
        """The next one. The queue is not empty."""
        while self._members.get(self._heap[0][1].request_id) is not self._heap[0][1]:
            heapq.heappop(self._heap)
        return self._heap[0][1]

    def pop(self) -> Request:
        """Removes and returns the next one. The queue is not empty."""
        request = self.peek()
        heapq.heappop(self._heap)
        del self._members[request.request_id]
        return request

    def remove(self, request: Request) -> None:
        """Removes a member from any place in the queue."""
        del self._members[request.request_id]
        if len(self._heap) > 2 * len(self._members) + 64:
            self._heap = [(member.sort_key, member) for member in self._members.values()]
            heapq.heapify(self._heap)
