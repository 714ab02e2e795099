"""`AdmissionControl`: how much may wait at once, and who is turned away.

Owned by `AsyncLLM`, on the event loop. Counts what it was told; knows no request's content.
"""

from __future__ import annotations

from quire.config import SchedulerConfig
from quire.errors import CapacityError

_SMOOTHING = 0.1
_LONGEST_RETRY_S = 30.0


class QueueFullError(CapacityError):
    """A queue bound is reached; `reason` is the name of the option that sets it."""

    def __init__(self, message: str, *, reason: str, retry_after_s: float) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.reason = reason


class AdmissionControl:
    """Refuses what would make the queue longer than configured; whoever is in stays in.

    A request waits, for this purpose, from its admission to its first token, as far as more
    requests are open than can run together. First come, first served: nobody is preferred.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self._max_running = config.max_num_seqs
        self._max_queued_reqs = config.max_num_queued_reqs
        self._max_queued_tokens = config.max_num_queued_tokens
        self._open: dict[str, float] = {}
        """Core requests and when they came, in seconds since the epoch."""
        self._waiting_tokens: dict[str, int] = {}
        """Prompt tokens of core requests without a first token."""
        self._num_waiting_tokens = 0
        self._mean_life_s = 1.0

    def check(self, num_requests: int, num_tokens: int) -> None:
        """Raises QueueFullError if that many more, with that many prompt tokens, are too many."""
        limit = self._max_queued_reqs
        num_open = len(self._open)
        if limit is not None and num_open + num_requests > self._max_running + limit:
            num_waiting = max(0, num_open - self._max_running)
            raise self._full("max_num_queued_reqs", f"{num_waiting} requests are waiting", limit)
        limit, waiting = self._max_queued_tokens, self._num_waiting_tokens
        if limit is not None and waiting and waiting + num_tokens > limit:
            raise self._full("max_num_queued_tokens", f"{waiting} prompt tokens are waiting", limit)

    def admit(self, request_id: str, num_tokens: int, now: float) -> None:
        """A core request is in."""
        self._open[request_id] = now
        self._waiting_tokens[request_id] = num_tokens
        self._num_waiting_tokens += num_tokens

    def on_first_token(self, request_id: str) -> None:
        """A core request no longer waits."""
        self._num_waiting_tokens -= self._waiting_tokens.pop(request_id, 0)

    def on_end(self, request_id: str, now: float) -> None:
        """A core request is gone."""
        self.on_first_token(request_id)
        begin = self._open.pop(request_id, None)
        if begin is not None:
            life_s = max(0.0, now - begin)
            self._mean_life_s += _SMOOTHING * (life_s - self._mean_life_s)

    def _full(self, option: str, what: str, limit: int) -> QueueFullError:
        num_waiting = max(1, len(self._open) - self._max_running)
        wait_s = self._mean_life_s * num_waiting / self._max_running
        return QueueFullError(
            f"The server is at its limit: {what} ({option} {limit}). Try again later.",
            reason=option,
            retry_after_s=min(_LONGEST_RETRY_S, max(1.0, wait_s)),
        )
