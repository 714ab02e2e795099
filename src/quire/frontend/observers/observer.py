"""`RequestObserver`: the base class of observers of request events.

Called by the `OutputProcessor`, on the front end's thread. Observers keep sums; data of a single
request is in its record.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from quire.frontend.completion_state import CompletionState
from quire.frontend.request_record import RequestRecord
from quire.protocol import SchedulerStats


@dataclass(slots=True)
class StepTokens:
    """The generated tokens of one step, of all requests."""

    num_new: int = 0
    gaps_s: list[float] = field(default_factory=list)
    """For each completion that had tokens before: seconds since then; negative if the clock was set
    back."""


class RequestObserver:
    """Ignores all events; observers override the events that they need.

    A request is admitted, then handed over or withdrawn. A request that was handed over ends with
    `on_finished` for each of its completions, for whatever reason.
    """

    def on_admitted(self, record: RequestRecord) -> None:
        """A request was admitted. It has no completions yet."""

    def on_withdrawn(self, record: RequestRecord) -> None:
        """An admitted request will not be handed over."""

    def on_handed_over(self, record: RequestRecord) -> None:
        """The request is passed to the engine core."""

    def on_first_token(self, record: RequestRecord, completion: CompletionState) -> None:
        """A completion has received its first token."""

    def on_finished(self, record: RequestRecord, completion: CompletionState, now: float) -> None:
        """A completion has ended; its `finish_reason` is `stop`, `length`, `abort` or `error`. The
        record's `num_open` no longer counts it."""

    def on_step(self, tokens: StepTokens, stats: SchedulerStats | None, now: float) -> None:
        """A step has ended, after all events of single requests in it."""

    def on_rejected(self, reason: str) -> None:
        """A request was rejected by the queue limit of that name."""

    def on_sleep(self, level: int | None) -> None:
        """The engine has entered this sleep level; None: it is awake."""

    def log(self) -> None:
        """Log now."""

    def log_when_due(self) -> None:
        """Log if the logging interval has passed."""
