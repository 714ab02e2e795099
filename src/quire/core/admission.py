"""`Admission`: the stages that a request passes before the scheduler queues it.

A stage prepares something that requests need besides KV blocks: encoded pictures, an adapter in
memory. A request passes the stages that it needs one after the other, always in the same order, so
that two requests never wait for each other. Knows nothing of what the stages prepare; the engine's
stages are listed in `engine_core.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field

from quire.errors import RequestError
from quire.protocol import EngineCoreOutput, EngineCoreRequest, SchedulerStats


@dataclass(slots=True)
class Passed:
    """Requests that have left a stage."""

    ready: list[EngineCoreRequest] = field(default_factory=list)
    failed: list[EngineCoreOutput] = field(default_factory=list)


class Stage(ABC):
    """Prepares one thing that requests need. Owned by the engine core's thread."""

    def __init__(self, level_of: Callable[[EngineCoreRequest], float] = lambda _: 0) -> None:
        """`level_of`: requests of a lower level go first."""
        self._level_of = level_of
        self._waiting: dict[str, EngineCoreRequest] = {}
        """In order of arrival."""

    @property
    def num_waiting(self) -> int:
        """Number of requests that wait here."""
        return len(self._waiting)

    @property
    def is_active(self) -> bool:
        """Whether `advance` has something to do."""
        return bool(self._waiting)

    @abstractmethod
    def is_needed_by(self, request: EngineCoreRequest) -> bool:
        """Whether the request must pass this stage."""

    def add(self, request: EngineCoreRequest) -> None:
        """Lets a request wait; `advance` returns it."""
        self._waiting[request.request_id] = request

    def has(self, request_id: str) -> bool:
        """Whether a request waits here."""
        return request_id in self._waiting

    def abort(self, request_id: str) -> None:
        """Forgets a waiting request; unknown ids are ignored."""
        self._waiting.pop(request_id, None)

    @abstractmethod
    def advance(self, compute_s: float = 0.0, wait_s: float = 0.0) -> Passed:
        """Prepares the next things, and returns the requests that may go on or have failed. It may
        let the workers compute for `compute_s` seconds, and wait for other threads for `wait_s`."""

    def release_ended(self, unfinished: Container[str]) -> None:  # noqa: B027
        """Releases what was prepared for requests that have ended."""

    def settle(self) -> None:  # noqa: B027
        """Waits for work that uses the weights."""

    def forget(self) -> None:  # noqa: B027
        """Drops what was computed: memory of the workers was released, or the weights are new."""

    def report(self, stats: SchedulerStats) -> None:  # noqa: B027
        """Adds the stage's numbers to the statistics of a step."""

    def shutdown(self) -> None:  # noqa: B027
        """Ends the stage's threads. Idempotent."""

    def _in_order(self) -> list[EngineCoreRequest]:
        """The waiting requests, the most urgent first."""
        return sorted(self._waiting.values(), key=self._level_of)


@dataclass(frozen=True, slots=True)
class _Unfinished:
    """Requests that have not ended: those of the scheduler, and those that still wait."""

    queued: Container[str]
    stages: Sequence[Stage]

    def __contains__(self, request_id: object) -> bool:
        return request_id in self.queued or any(one.has(str(request_id)) for one in self.stages)


class Admission:
    """Owned by the engine core's thread, as its stages are."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        """`stages`: in the order in which requests pass them."""
        self.stages = stages

    @property
    def num_waiting(self) -> int:
        """Number of requests that wait in a stage."""
        return sum(one.num_waiting for one in self.stages)

    @property
    def is_active(self) -> bool:
        """Whether `advance` has something to do."""
        return any(one.is_active for one in self.stages)

    def add(self, request: EngineCoreRequest, first: int = 0) -> bool:
        """Lets a request wait in the next stage that it needs, from stage `first` on. Returns
        whether it waits; `advance` returns it then. Raises RequestError if its id waits already."""
        if any(one.has(request.request_id) for one in self.stages):
            raise RequestError(f"a request with id {request.request_id!r} is being served already")
        for stage in self.stages[first:]:
            if stage.is_needed_by(request):
                stage.add(request)
                return True
        return False

    def advance(self, compute_s: float, wait_s: float) -> Passed:
        """Advances each stage. Returns the requests that have passed all, or have failed."""
        passed = Passed()
        for number, stage in enumerate(self.stages):
            if stage.is_active:
                own = stage.advance(compute_s, wait_s)
                passed.failed += own.failed
                passed.ready += [one for one in own.ready if not self.add(one, number + 1)]
        return passed

    def abort(self, request_id: str) -> None:
        """Forgets a waiting request; unknown ids are ignored."""
        for stage in self.stages:
            stage.abort(request_id)

    def release_ended(self, queued: Container[str]) -> None:
        """Releases what was prepared for requests that are neither `queued` nor waiting."""
        unfinished = _Unfinished(queued, self.stages)
        for stage in self.stages:
            stage.release_ended(unfinished)

    def settle(self) -> None:
        """Waits for work that uses the weights."""
        for stage in self.stages:
            stage.settle()

    def forget(self) -> None:
        """Drops what was computed: memory of the workers was released, or the weights are new."""
        for stage in self.stages:
            stage.forget()

    def report(self, stats: SchedulerStats) -> None:
        """Adds the stages' numbers to the statistics of a step."""
        stats.num_waiting += self.num_waiting
        for stage in self.stages:
            stage.report(stats)

    def shutdown(self) -> None:
        """Ends the stages' threads. Idempotent."""
        for stage in self.stages:
            stage.shutdown()


def refusal_of(request: EngineCoreRequest, message: str) -> EngineCoreOutput:
    """The output of a request that cannot run because of what it asks for."""
    return EngineCoreOutput(
        request_id=request.request_id,
        finish_reason="error",
        error=message,
        is_unmet=True,
        parameter="model",
    )
