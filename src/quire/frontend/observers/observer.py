"""`RequestObserver`: the base class of what follows the events of requests.

Called by the `OutputProcessor`, on the front end's thread. An observer keeps sums; what is known
of one request stands in its record.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from quire.frontend.completion_state import CompletionState
from quire.frontend.request_record import RequestRecord
from quire.protocol import SchedulerStats


@dataclass(slots=True)
class StepTokens:
    """The generated tokens that a step brought, of all requests."""

    num_new: int = 0
    gaps_s: list[float] = field(default_factory=list)
    """For each completion that had tokens before: the time since then; negative if the clock was
    set back."""


class RequestObserver:
    """Does nothing; observers override the events that they need.

    A request is admitted, then handed over or withdrawn. One that was handed over ends with
    `on_finished` for each of its completions, whatever ended them.
    """

    def on_admitted(self, record: RequestRecord) -> None:
        """A request has a place. It has no completions yet."""

    def on_withdrawn(self, record: RequestRecord) -> None:
        """An admitted request will not be handed over."""

    def on_handed_over(self, record: RequestRecord) -> None:
        """The request goes to the engine core now."""

    def on_first_token(self, record: RequestRecord, completion: CompletionState) -> None:
        """A completion has its first token."""

    def on_finished(self, record: RequestRecord, completion: CompletionState, now: float) -> None:
        """A completion has ended, as its `finish_reason` says: `stop`, `length`, `abort` or
        `error`. `num_open` of the record does not count it any longer."""

    def on_step(self, tokens: StepTokens, stats: SchedulerStats | None, now: float) -> None:
        """A step has ended; all that it brought for single requests has been told."""

    def on_rejected(self, reason: str) -> None:
        """A request was turned away at a queue limit of that name."""

    def on_sleep(self, level: int | None) -> None:
        """The engine sleeps at this level from now on; None: it is awake."""

    def log(self) -> None:
        """The caller wants what there is to log, now."""

    def log_when_due(self) -> None:
        """The same, for those who log every few seconds and did not since."""
