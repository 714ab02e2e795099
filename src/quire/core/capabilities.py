"""`Capabilities`: calls the hooks of an engine's capabilities; requests pass its stages."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quire.core.capability import Capability, Stage
from quire.errors import RequestError
from quire.protocol import (
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    SchedulePlan,
    SchedulerStats,
)
from quire.system.hooks import overriding

if TYPE_CHECKING:
    from quire.scheduler import Scheduler


class Capabilities:
    """The capabilities of an engine. Owned by the engine core's thread.

    A request passes the stages that it needs one after the other, always in the same order, so
    that two requests never wait for each other. Then the scheduler gets it.
    """

    def __init__(self, every: Sequence[Capability], scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._stages = [one for one in every if isinstance(one, Stage)]
        self._overriding = overriding(Capability, every)
        self._refused = {name: error for one in every for name, error in one.refused.items()}
        self.commands = {name: call for one in every for name, call in one.commands.items()}

    @property
    def num_waiting(self) -> int:
        """Number of requests that the scheduler does not have yet."""
        return sum(one.num_waiting for one in self._stages)

    def hooks(self, name: str) -> list[Callable[..., Any]]:
        """The hooks of this name that capabilities override, in order."""
        return [getattr(one, name) for one in self._overriding[name]]

    def run(self, name: str, *args: object) -> None:
        """Calls all hooks of a name."""
        for one in self._overriding[name]:
            getattr(one, name)(*args)

    def complete(self, plan: SchedulePlan) -> None:
        """Adds to a plan what the workers need for it."""
        for one in self._overriding["complete"]:
            if one.is_active:
                one.complete(plan)

    def follow(self, outputs: EngineCoreOutputs, step_s: float) -> None:
        """Lets each take in the tokens of a step."""
        for one in self._overriding["follow"]:
            if one.is_active:
                one.follow(outputs, step_s)

    def add(self, request: EngineCoreRequest) -> None:
        """Lets a request wait in the first stage that it needs, or queues it. Raises RequestError
        if its id is in use or if it could never run."""
        for field_name, error in self._refused.items():
            if getattr(request, field_name):
                raise RequestError(error)
        if any(one.has(request.request_id) for one in self._stages):
            raise RequestError(f"a request with id {request.request_id!r} is being served already")
        self._pass_on(request, self._stages)

    def _pass_on(self, request: EngineCoreRequest, stages: Sequence[Stage]) -> None:
        for stage in stages:
            if stage.is_needed_by(request):
                stage.add(request)
                return
        self._scheduler.add_request(request)
        for one in self._overriding["begin"]:
            if not one.needed_for or getattr(request.sampling_params, one.needed_for) is not None:
                one.begin(request)

    def advance(self, *, is_idle: bool) -> list[EngineCoreOutput]:
        """Advances each capability, and queues the requests that have passed all stages. Returns
        the outputs of requests that have failed."""
        failed: list[EngineCoreOutput] = []
        for one in self._overriding["advance"]:
            if not one.is_active or (passed := one.advance(is_idle=is_idle)) is None:
                continue
            failed += passed.failed
            for request in passed.ready:
                try:
                    later = self._stages[self._stages.index(one) + 1 :]  # type: ignore[arg-type]
                    self._pass_on(request, later)
                except RequestError as error:
                    failed.append(refusal_of(request, str(error)))
        return failed

    def report(self, stats: SchedulerStats) -> None:
        """Adds the numbers of all to the statistics of a step."""
        for stage in self._stages:
            stats.num_waiting += stage.num_waiting
        self.run("report", stats)

    def release_ended(self) -> None:
        """Releases what was prepared for requests that are neither queued nor waiting."""
        if self._overriding["release_ended"]:
            self.run("release_ended", _Unfinished(self._scheduler.states.by_id, self._stages))


@dataclass(frozen=True, slots=True)
class _Unfinished:
    """Requests that have not ended: those of the scheduler, and those that still wait."""

    queued: Container[str]
    stages: Sequence[Stage]

    def __contains__(self, request_id: object) -> bool:
        return request_id in self.queued or any(one.has(str(request_id)) for one in self.stages)


def refusal_of(request: EngineCoreRequest, message: str) -> EngineCoreOutput:
    """The output of a request that cannot run because of what it asks for."""
    return EngineCoreOutput(
        request_id=request.request_id,
        finish_reason="error",
        error=message,
        is_unmet=True,
        parameter="model",
    )
