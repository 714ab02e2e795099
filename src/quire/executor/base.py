"""The contract between `EngineCore` and its workers."""

from __future__ import annotations

from abc import ABC, abstractmethod

from quire.protocol import SchedulePlan, StepResult


class Executor(ABC):
    """Runs plans on one worker or many. Constructing one loads the model. One caller at a time."""

    @abstractmethod
    def execute(self, plan: SchedulePlan) -> StepResult:
        """One step: the second of the three verbs.

        Raises BackendError if the computation failed: then the plan's changes to requests are
        applied, its requests hold nothing of use, and further plans may be executed.
        """

    def progress(self) -> int | None:
        """A number that changes while a step advances; None if it is not counted. Any thread."""
        return None

    @abstractmethod
    def shutdown(self) -> None:
        """Frees everything. Idempotent."""
