"""`RequestObserver`: who is told of what happens to requests.

Called by the `OutputProcessor`, on the front end's thread. An observer keeps sums; what is known
of one request stands in its record.
"""

from __future__ import annotations

from quire.frontend.completion_state import CompletionState
from quire.frontend.request_record import RequestRecord
from quire.protocol import SchedulerStats


class RequestObserver:
    """Does nothing; observers override what they want to be told of.

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
        """A completion has its first token; `on_tokens` follows."""

    def on_tokens(
        self,
        record: RequestRecord,
        completion: CompletionState,
        num_new: int,
        gap_s: float | None,
    ) -> None:
        """A step gave `num_new` tokens, `gap_s` after those before; None: there were none."""

    def on_finished(self, record: RequestRecord, completion: CompletionState, now: float) -> None:
        """A completion has ended, as its `finish_reason` says: `stop`, `length`, `abort` or
        `error`. `num_open` of the record does not count it any longer."""

    def on_step(self, stats: SchedulerStats | None, now: float) -> None:
        """A step has ended; all that it brought has been told."""
