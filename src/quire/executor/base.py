"""The contract between `EngineCore` and its workers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from quire.protocol import SchedulePlan, StepResult


class Executor(ABC):
    """Runs plans on one worker or many, in the order in which they are submitted.

    Constructing one loads the model. One caller at a time.
    """

    max_plans_in_flight: int = 1
    """Most plans that may be submitted and not collected."""

    @abstractmethod
    def submit(self, plan: SchedulePlan) -> None:
        """Hands a plan with requests over; may return before it is computed. Whatever goes wrong
        with it, `collect` says so."""

    @abstractmethod
    def collect(self) -> StepResult:
        """The result of the oldest plan that was submitted and not collected; waits for it.

        Raises BackendError if the computation failed: then the plan's changes to requests are
        applied, its requests hold nothing of use, and further plans may be submitted.
        """

    @abstractmethod
    def call(self, method: str | Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Runs a public method of `Worker`, or a function that takes the worker first, on every
        worker, between two plans; the results in the order of the workers. Raises ConfigError for
        a method that there is not, and what the method raises."""

    def failure(self) -> str | None:
        """Why no plan can be computed any more, in a line; None while the workers are well. Any
        thread may ask."""
        return None

    def progress(self) -> int | None:
        """A number that changes while a step advances; None if it is not counted. Any thread."""
        return None

    @property
    def has_new_weights(self) -> bool:
        """Whether workers were given weights that they load when `take_new_weights` is called."""
        return False

    @abstractmethod
    def shutdown(self) -> None:
        """Frees everything. Idempotent."""
