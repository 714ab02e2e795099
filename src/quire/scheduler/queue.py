"""`RequestQueue` and the policies: who is next among the waiting. They order, and decide nothing.

Called by the scheduler's one admission loop.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

from quire.config.records import SchedulingPolicy
from quire.protocol import EngineCoreRequest
from quire.scheduler.request import Request

SortKey = Callable[[EngineCoreRequest, int], tuple[float, ...]]
"""From a message and its number in order of arrival; smaller runs earlier, no two are equal."""


def first_come(_message: EngineCoreRequest, number: int) -> tuple[float, ...]:
    """In order of arrival."""
    return (number,)


def by_priority(message: EngineCoreRequest, number: int) -> tuple[float, ...]:
    """Lower `priority` first, then in order of arrival."""
    return (message.priority, message.arrival_time, number)


POLICIES: dict[SchedulingPolicy, SortKey] = {"fcfs": first_come, "priority": by_priority}


class RequestQueue:
    """Waiting requests in order of `sort_key`; a preempted one returns to its old place.

    A heap, with removal by forgetting: an aborted request is dropped when it surfaces, so
    that a thousand aborts in a long queue cost no more than they should.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[float, ...], Request]] = []
        self._members: dict[str, Request] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Request]:
        """All members, in no order."""
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
        """Removes a member, wherever it is."""
        del self._members[request.request_id]
        if len(self._heap) > 2 * len(self._members) + 64:
            self._heap = [(member.sort_key, member) for member in self._members.values()]
            heapq.heapify(self._heap)
