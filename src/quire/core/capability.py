"""`Capability`: the contract of what requests may use besides the model and its KV blocks.

Encoded pictures, adapters, grammars and the KV store are capabilities of an engine, which lists its
own in `engine_core.py`. `capabilities.py` calls their hooks in the order of this list. A `Stage` is
a capability for which requests wait before the scheduler queues them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from quire.protocol import (
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    SchedulePlan,
    SchedulerStats,
)


@dataclass(slots=True)
class Passed:
    """Requests that have left a stage, and outputs of requests that have failed."""

    ready: list[EngineCoreRequest] = field(default_factory=list)
    failed: list[EngineCoreOutput] = field(default_factory=list)


class Capability:
    """Hooks of the engine core's thread. A hook that a class does not override costs nothing."""

    @property
    def commands(self) -> Mapping[str, Callable[..., Any]]:
        """Commands that a front end may call by name; they hold no reference to the core."""
        return {}

    refused: ClassVar[Mapping[str, str]] = {}
    """Fields of requests that must be empty, because the engine has no use for them; and the errors
    that say so."""
    needed_for: str | None = None
    """Field of the sampling parameters of requests that `begin` is for; None: it is for all."""

    @property
    def is_active(self) -> bool:
        """Whether `advance`, `complete` and `follow` have something to do."""
        return True

    def advance(self, *, is_idle: bool) -> Passed | None:
        """Before a plan is made: takes in what other threads have done, and lets requests go on.
        `is_idle`: there is nothing else to do, so it may wait for some milliseconds."""

    def begin(self, request: EngineCoreRequest) -> None:
        """The scheduler has queued a request."""

    def complete(self, plan: SchedulePlan) -> None:
        """Adds to a plan what the workers need for it."""

    def observe(self, plan: SchedulePlan, duration_s: float) -> None:
        """A plan was computed, and took so long."""

    def follow(self, outputs: EngineCoreOutputs, step_s: float) -> None:
        """Takes in the tokens of a step, and may add outputs of requests that fail. `step_s`:
        duration of the last plan, in seconds."""

    def abort(self, request_ids: Sequence[str]) -> None:
        """Forgets requests; unknown ids are ignored."""

    def release_ended(self, unfinished: Container[str]) -> None:
        """Releases what was prepared for requests that have ended."""

    def report(self, stats: SchedulerStats) -> None:
        """Adds numbers to the statistics of a step."""

    def settle(self) -> None:
        """Waits for work that uses the weights."""

    def forget(self) -> None:
        """Drops what was computed: memory of the workers was released, or the weights are new."""

    def has_idle_work(self) -> bool:
        """Whether `use_idle_time` would do anything."""
        return False

    def use_idle_time(self) -> bool:
        """Prepares something for the next requests, for some milliseconds. Returns False if there
        is nothing left to prepare."""
        return False

    def shutdown(self) -> None:
        """Ends threads. Idempotent."""

    def abandon(self) -> None:
        """Ends threads after the core was dropped without `shutdown`."""


class Stage(Capability, ABC):
    """Prepares one thing that requests need before they are queued."""

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
        return bool(self._waiting)

    @abstractmethod
    def is_needed_by(self, request: EngineCoreRequest) -> bool:
        """Whether the request must pass this stage."""

    @abstractmethod
    def advance(self, *, is_idle: bool) -> Passed:
        """Prepares the next things, and returns the requests that may go on or have failed."""

    def add(self, request: EngineCoreRequest) -> None:
        """Lets a request wait; `advance` returns it."""
        self._waiting[request.request_id] = request

    def has(self, request_id: str) -> bool:
        """Whether a request waits here."""
        return request_id in self._waiting

    def abort(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            self._waiting.pop(request_id, None)

    def _in_order(self) -> list[EngineCoreRequest]:
        """The waiting requests, the most urgent first."""
        return sorted(self._waiting.values(), key=self._level_of)
