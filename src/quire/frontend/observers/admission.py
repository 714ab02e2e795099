"""`AdmissionControl`: limits the waiting requests, and rejects requests beyond the limits.

Owned by `OnlineRequests`, on the event loop. Keeps sums only, no contents of requests.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable

from quire.config import SchedulerConfig
from quire.errors import CapacityError, RequestError
from quire.frontend.completion_state import CompletionState
from quire.frontend.observers.observer import RequestObserver, StepTokens
from quire.frontend.request_record import RequestRecord
from quire.protocol import SchedulerStats
from quire.system import clock
from quire.units import GiB, format_bytes

_SMOOTHING = 0.1
_LONGEST_RETRY_S = 30.0
_BURST_S = 0.4
"""Work of the event loop during a burst, in seconds; it suffices to accept hundreds of requests."""
_CALM = 1 / 8
"""A server is calm if its requests are at most this share of those that it can run..."""
_CALM_S = 2.0
"""... and it rejected no request for this many seconds. Replies of one length end together, so that
even an overloaded server has few requests for a moment."""
_SHORTEST_WAIT_S = 0.25
"""A wait for the first token that is always acceptable."""
_SHARE_OF_REPLY = 1 / 8
"""A longer wait is acceptable if it adds at most this share to the duration of a reply."""
_PACE_MEMORY_S = 3.0
_MOST_IMAGE_BYTES = 2 * GiB
"""Decoded images and sounds of waiting requests. A token of a prompt may have 12 KB of them, so the
bounds of requests and of tokens would not bound the memory."""


class QueueFullError(CapacityError):
    """A queue bound was reached; `reason` is the name of the option that sets it, or what is
    bounded."""

    def __init__(self, message: str, *, reason: str, retry_after_s: float) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.reason = reason


class AdmissionControl(RequestObserver):
    """Rejects requests that would make the queue too long. Admitted requests stay.

    As many requests as can run at once are always admitted. More requests are not served sooner;
    they only make all of them wait. A burst that arrives at a calm server may fill the queue up to
    its bounds, because it will pass. In a lasting overload (unless the user set a bound), another
    request is admitted only if its wait for the first token, estimated from the recent rate of
    first tokens, is short compared with replies: admitted requests then hardly notice the overload,
    and clients can send the others elsewhere. An idle server accepts any single request within the
    bounds.

    A burst consists of the requests that arrive before the event loop has worked for `_BURST_S`
    since the server was calm. Measuring the loop's own work keeps this valid on slow or busy
    machines. Requests are served in order of arrival.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        num_engines: Callable[[], int] = lambda: 1,
        work_clock: Callable[[], float] = time.thread_time,
        now: Callable[[], float] = clock.now,
    ) -> None:
        """All times except `work_clock`'s are seconds since the epoch."""
        self._max_num_seqs = config.max_num_seqs
        self._num_engines = num_engines
        self._max_queued_reqs = config.max_num_queued_reqs
        self._max_queued_tokens = config.max_num_queued_tokens
        self._may_stand = config.queue_may_stand
        self._work_clock = work_clock
        self._now = now
        self._calm_at = work_clock()
        """Value of `work_clock` when the server was last calm."""
        self._refused_at = -math.inf
        """Time of the last rejection in a lasting overload."""
        self._pace = Pace()
        self._num_open = 0
        """Admitted core requests that have not ended."""
        self._num_waiting = 0
        """Open core requests without a first token."""
        self._num_waiting_tokens = 0
        """Prompt tokens of the waiting core requests."""
        self._num_waiting_bytes = 0
        """Bytes of their decoded images and sounds."""
        self._replying: dict[str, float] = {}
        """Time of the first token of each reply that has not ended, by id, the oldest first."""
        self._num_first = 0
        """Number of first tokens in the current step."""
        self._mean_wait_s = self._mean_reply_s = _SHORTEST_WAIT_S
        """Mean seconds until the first token, and from there until the end."""

    @property
    def _max_running(self) -> int:
        return self._max_num_seqs * max(1, self._num_engines())

    def check(self, num_requests: int, num_tokens: int, num_image_bytes: int = 0) -> None:
        """Raises QueueFullError if there is no room for these core requests, prompt tokens and
        bytes of decoded images and sounds, RequestError if there never is."""
        if num_requests > 1 and num_image_bytes > _MOST_IMAGE_BYTES:
            raise RequestError(
                f"n times the decoded images and sounds must have at most "
                f"{format_bytes(_MOST_IMAGE_BYTES)}, but {num_requests} times they have "
                f"{format_bytes(num_image_bytes)}: send a smaller n, or smaller images",
                parameter="n",
            )
        num_open = self._num_open
        is_small = num_open <= self._max_running * _CALM
        if is_small and self._now() - self._refused_at > _CALM_S:
            self._calm_at = self._work_clock()
        num_waiting = max(0, num_open - self._max_running)
        limit = self._max_queued_reqs
        if limit is not None and num_open + num_requests > self._max_running + limit:
            raise self._full("max_num_queued_reqs", f"{num_waiting} requests are waiting", limit)
        limit, waiting = self._max_queued_tokens, self._num_waiting_tokens
        if limit is not None and waiting and waiting + num_tokens > limit:
            raise self._full("max_num_queued_tokens", f"{waiting} prompt tokens are waiting", limit)
        limit, waiting = _MOST_IMAGE_BYTES, self._num_waiting_bytes
        if num_image_bytes and waiting and waiting + num_image_bytes > limit:
            what = f"{format_bytes(waiting)} of decoded images and sounds are waiting"
            raise self._full("image_bytes", what, limit)
        if num_open and num_open + num_requests > self._max_running and self._is_lasting():
            wait_s = max(
                self._pace.seconds_for(self._num_waiting + num_requests),
                self._until_place(num_open + num_requests - self._max_running),
            )
            if wait_s > max(_SHORTEST_WAIT_S, _SHARE_OF_REPLY * self._mean_reply_s):
                self._refused_at = self._now()
                # With few first tokens so far, the estimate is far too long.
                takes = f"{wait_s:.1f}" if wait_s <= _LONGEST_RETRY_S else "more than 30"
                what = f"the first token of a reply would take {takes} s"
                raise self._full("max_num_queued_reqs", what, None)

    def expected_wait_s(self) -> float:
        """Seconds until the first token of a request that would arrive now, because of the requests
        before it; 0 if it would be computed at once."""
        num_before = self._num_open + 1 - self._max_running
        until_place_s = self._until_place(num_before) if num_before > 0 else 0.0
        return max(0.0, until_place_s, self._pace.seconds_for(self._num_waiting))

    def on_admitted(self, record: RequestRecord) -> None:
        self._num_open += record.num_core_requests
        self._add_waiting(record, record.num_core_requests)

    def on_withdrawn(self, record: RequestRecord) -> None:
        self._num_open -= record.num_core_requests
        self._add_waiting(record, -record.num_core_requests)

    def on_first_token(self, record: RequestRecord, completion: CompletionState) -> None:
        self._add_waiting(record, -1)
        self._num_first += 1
        self._replying[completion.request_id] = completion.stats.first_token_ts
        wait_s = completion.stats.first_token_latency
        self._mean_wait_s += _SMOOTHING * (wait_s - self._mean_wait_s)

    def on_finished(self, record: RequestRecord, completion: CompletionState, now: float) -> None:
        self._num_open -= 1
        if self._replying.pop(completion.request_id, None) is not None:
            reply_s = now - completion.stats.first_token_ts
            self._mean_reply_s += _SMOOTHING * (reply_s - self._mean_reply_s)
        else:
            self._add_waiting(record, -1)

    def on_step(self, tokens: StepTokens, stats: SchedulerStats | None, now: float) -> None:
        del tokens, stats
        self._pace.observe(self._num_first, now, self._num_waiting > 0)
        self._num_first = 0

    def _add_waiting(self, record: RequestRecord, count: int) -> None:
        self._num_waiting += count
        self._num_waiting_tokens += count * record.num_prompt_tokens
        self._num_waiting_bytes += count * record.input.num_image_bytes

    def _is_lasting(self) -> bool:
        return not self._may_stand and self._work_clock() - self._calm_at > _BURST_S

    def _until_place(self, count: int) -> float:
        """Seconds until `count` running requests have ended, assuming replies of mean duration; 0
        if fewer have begun. Replies of one length end together, followed by a time in which none
        ends; the rate of first tokens does not show that."""
        begun_at = next(itertools.islice(self._replying.values(), count - 1, None), None)
        return 0.0 if begun_at is None else begun_at + self._mean_reply_s - self._now()

    def _full(self, option: str, what: str, limit: int | None) -> QueueFullError:
        life_s = self._mean_wait_s + self._mean_reply_s
        wait_s = life_s * max(1, self._num_open - self._max_running) / self._max_running
        bound = option if limit is None else f"{option} {limit}"
        return QueueFullError(
            f"The server is at its limit: {what} ({bound}). Try again later.",
            reason=option,
            retry_after_s=min(_LONGEST_RETRY_S, max(1.0, wait_s)),
        )


class Pace:
    """The rate of first tokens while requests wait for one; old values have little weight."""

    def __init__(self) -> None:
        self._busy_s = 0.0
        self._num_first = 0.0
        self._last = 0.0
        self._has_waiting = False

    def observe(self, num_first: int, now: float, has_waiting: bool) -> None:
        """Record that a step ended at `now`; `has_waiting`: some requests have no first token
        yet."""
        if self._has_waiting:
            elapsed_s = max(0.0, now - self._last)
            memory = math.exp(-elapsed_s / _PACE_MEMORY_S)
            self._busy_s = self._busy_s * memory + elapsed_s
            self._num_first = self._num_first * memory + num_first
        self._last, self._has_waiting = now, has_waiting

    def seconds_for(self, count: int) -> float:
        """Seconds until `count` first tokens have come; 0 if there are no values yet."""
        return count * self._busy_s / self._num_first if self._num_first > 0 else 0.0
