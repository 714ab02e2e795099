"""`Drafting`: which requests get how many draft tokens in the next step, by estimates of how often
guesses are right (`RequestAcceptance`) and how long a row of a step takes (`RowCosts`).

Kept by the scheduler. What it decides changes the time of steps and no bit of any answer.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from quire.config.speculation import SpeculationConfig
from quire.outputs.counts import RequestSpecDecodeMetrics
from quire.protocol import SpeculationStats
from quire.scheduler.drafting.proposer import NUM_GRADES, OF_MODEL, PREDICTED, Proposer
from quire.scheduler.request import Request

LookAhead = Callable[[str, Sequence[int]], list[int]]
"""The next tokens of a request where its grammar allows no others; otherwise those of the given
tokens that it allows one after the other."""
_FORCED = -1
"""The grade of tokens that a grammar forces: they are always right, and count as no guesses."""
_MOST_WITH_GRAMMAR = 8
"""Maximum number of draft tokens of a request with a grammar: each needs a mask of its own."""
_MAX_DELAY = 0.02
"""Share of a step's time that the drafts of some requests may add for the others."""
_PROBE_STEPS = 64
"""After this number of steps without drafts one guess is tried, whatever it is expected to cost."""
_LEAST_GAIN = 1.02
"""Drafts are used where they raise the tokens per second at least to this multiple."""


@dataclass(slots=True)
class _Candidate:
    """The guesses for one request."""

    request: Request
    token_ids: list[int]
    grade: int
    rate: float
    """The chance that a guess is right, if those before it are."""


class Drafting:
    """Proposes drafts for the requests that generate. Owned by the engine's thread.

    Drafts follow tokens that are known, so only a step that is planned when the results of all
    earlier ones are collected has drafts.
    """

    def __init__(
        self, config: SpeculationConfig, look_ahead: LookAhead | None, proposer: Proposer
    ) -> None:
        self._config = config
        self._has_model = config.has_model
        self._look_ahead = look_ahead
        self._proposer = proposer
        self._costs = RowCosts()
        self._engine_rates = rates_of_engine()
        self._of_requests: dict[Request, RequestAcceptance] = {}
        self._in_flight: dict[Request, int] = {}
        """The grades of the drafts that a step checks."""
        self._had_prompts = False
        """Whether the last step computed prompts."""
        self._allowance = 0.0
        """Rows that steps could have had for drafts without delaying others too long."""
        self._num_without = 0
        """Steps since the last drafts."""
        self._stats = SpeculationStats()

    def result_came(self, *, had_prompts: bool) -> None:
        """The result of a step was collected. `had_prompts`: the step computed prompts."""
        self._had_prompts = had_prompts

    def give(self, running: Sequence[Request]) -> None:
        """Gives the requests their drafts for the next step. No plan is in flight."""
        chosen = self._choose(running)
        self._num_without = 0 if chosen else self._num_without + 1
        for request in running:
            candidate = chosen.get(request)
            request.draft_token_ids = [] if candidate is None else candidate.token_ids
            if candidate is not None:
                self._in_flight[request] = candidate.grade
        if self._has_model:
            self._ask_model(running)

    def _ask_model(self, running: Sequence[Request]) -> None:
        """Sets how many tokens the draft model proposes after the next step: as many as the step
        after it would check."""
        most = self._config.num_speculative_tokens
        asked = []
        for request in running:
            request.num_next_drafts = 0
            if request.is_generating and not self._had_prompts:
                rate = self._rates(request).rate(OF_MODEL)
                asked.append(_Candidate(request, [0] * most, OF_MODEL, rate))
        counts = _best_counts(asked, len(running), most * len(asked), self._costs)
        if asked and not any(counts) and self._num_without >= _PROBE_STEPS:
            counts[0] = 1
        for one, count in zip(asked, counts, strict=True):
            one.request.num_next_drafts = count

    def checked(self, request: Request, num_drafts: int, num_right: int) -> None:
        """A step has checked drafts of a request, of which the first `num_right` were right."""
        grade = self._in_flight.pop(request, None)
        if grade is None or not num_drafts or grade == _FORCED:
            return
        self._rates(request).observe(grade, num_drafts, num_right)
        _count(self._stats, num_drafts, num_right)
        if grade == PREDICTED and (counts := request.prediction) is not None:
            counts.num_accepted += num_right
            counts.num_rejected += num_drafts - num_right
        if (level := self._config.per_request_metrics) != "none":
            if request.spec_decode_metrics is None:
                most = self._config.num_speculative_tokens
                request.spec_decode_metrics = RequestSpecDecodeMetrics.new(most)
            request.spec_decode_metrics.observe(num_drafts, num_right, level == "detailed")

    def observe(self, num_rows: int, duration_s: float) -> None:
        """A step of so many rows and without prompts took `duration_s`."""
        self._costs.observe(num_rows, duration_s)

    def forget(self, request: Request) -> None:
        """The request is finished."""
        self._proposer.forget(request)
        self._of_requests.pop(request, None)
        self._in_flight.pop(request, None)

    def take_stats(self) -> SpeculationStats | None:
        """Return the statistics since the last call; None if there were no drafts."""
        stats, self._stats = self._stats, SpeculationStats()
        return stats if stats.num_drafts else None

    def _rates(self, request: Request) -> RequestAcceptance:
        rates = self._of_requests.get(request)
        if rates is None:
            rates = self._of_requests[request] = RequestAcceptance(self._engine_rates)
        return rates

    def _candidate(self, request: Request) -> _Candidate | None:
        num_missing = request.num_tokens - request.num_computed_tokens
        if request.awaits_mask or not request.is_generating or num_missing > 1:
            return None
        room = request.max_total_tokens - request.num_tokens - 1
        most = min(room, self._config.num_speculative_tokens)
        if forced := self._allowed(request, [])[: max(0, most)]:
            return _Candidate(request, forced, _FORCED, 1.0)
        proposal = self._proposer.propose(request, most) if most > 0 else None
        if proposal is None:
            return None
        rates = self._rates(request)
        return _Candidate(request, proposal.token_ids, proposal.grade, rates.rate(proposal.grade))

    def _choose(self, running: Sequence[Request]) -> dict[Request, _Candidate]:
        """The drafts that raise the tokens per second of the whole next step the most. With prompts
        there are none: such a step is bound by arithmetic, so that each row costs its share."""
        if self._had_prompts:
            return {}
        candidates = [one for request in running if (one := self._candidate(request)) is not None]
        if not candidates:
            return {}
        num_rows = len(running)
        most = self._most_drafts(len(candidates), num_rows)
        counts = _best_counts(candidates, num_rows, most, self._costs)
        if not any(counts) and self._num_without >= _PROBE_STEPS:
            best = max(range(len(candidates)), key=lambda i: candidates[i].rate)
            counts[best] = 1
        chosen = {}
        for candidate, count in zip(candidates, counts, strict=True):
            token_ids = candidate.token_ids[:count]
            if candidate.grade != _FORCED:
                token_ids = self._allowed(candidate.request, token_ids)
            candidate.token_ids = token_ids
            if candidate.token_ids:
                chosen[candidate.request] = candidate
            elif candidate.grade != _FORCED:
                self._rates(candidate.request).fade()
        if len(candidates) < num_rows:
            self._allowance -= sum(counts)
        return chosen

    def _allowed(self, request: Request, token_ids: list[int]) -> list[int]:
        """The tokens that the request's grammar forces; otherwise the first of these tokens, up to
        one that it forbids."""
        if not request.has_grammar:
            return token_ids
        if self._look_ahead is None:
            return []
        return self._look_ahead(request.request_id, token_ids[:_MOST_WITH_GRAMMAR])

    def _most_drafts(self, num_candidates: int, num_rows: int) -> int:
        """Limit for the drafts of the step: other requests must hardly wait for them."""
        total = self._config.num_speculative_tokens * num_candidates
        if num_candidates == num_rows:
            return total
        step_s = self._costs.seconds(num_rows)
        row_s = max(self._costs.seconds(num_rows + 1) - step_s, step_s / num_rows / 8)
        allowed = _MAX_DELAY * step_s / row_s
        self._allowance = min(self._allowance + allowed, max(1.0, allowed))
        return min(total, int(self._allowance))


def _best_counts(
    candidates: Sequence[_Candidate], num_rows: int, most: int, costs: RowCosts
) -> list[int]:
    """Numbers of drafts of each candidate that give the most expected tokens per second.

    Draft tokens are added one by one, the likeliest first; the chance of the j-th of a request is
    rate^j. The best of all these prefixes wins: the time of a step grows by jumps.
    """
    step_s = costs.seconds(num_rows)
    queue = [(-one.rate, index) for index, one in enumerate(candidates)]
    heapq.heapify(queue)
    counts, best = [0] * len(candidates), [0] * len(candidates)
    expected, best_gain = float(num_rows), _LEAST_GAIN
    for total in range(1, most + 1):
        if not queue:
            break
        chance, index = heapq.heappop(queue)
        candidate = candidates[index]
        counts[index] += 1
        expected -= chance
        if counts[index] < len(candidate.token_ids):
            heapq.heappush(queue, (chance * candidate.rate, index))
        gain = expected / num_rows * step_s / costs.seconds(num_rows + total)
        if gain > best_gain:
            best, best_gain = counts.copy(), gain
    return best


def _count(stats: SpeculationStats, num_drafts: int, num_right: int) -> None:
    """Counts one draft of `num_drafts` tokens, of which the first `num_right` were right."""
    stats.num_drafts += 1
    stats.num_draft_tokens += num_drafts
    stats.num_accepted_tokens += num_right
    by_position = stats.accepted_by_position
    by_position += [0] * (num_right - len(by_position))
    for place in range(num_right):
        by_position[place] += 1


_PRIOR = (0.5, 0.6, 0.75, 0.9, 0.9)
"""Rates by grade, before anything is known."""
_PRIOR_WEIGHT = 4.0
"""Number of guesses that the engine's rate counts as, in the rate of a request."""
_KEPT = 0.97
"""Share of a count that is left after a step. Old results fade, so that a request that could not
be guessed is tried again later."""
_KEPT_BY_ENGINE = 0.995


class _Rates:
    """Right guesses and all guesses by grade; both fade."""

    __slots__ = ("right", "tried")

    def __init__(self, tried: float = 0.0) -> None:
        self.tried = [tried] * NUM_GRADES
        self.right = [tried * rate for rate in _PRIOR]

    def add(self, grade: int, num_right: int, num_tried: int, kept: float) -> None:
        for counts, number in ((self.right, num_right), (self.tried, num_tried)):
            counts[grade] = counts[grade] * kept + number


def rates_of_engine() -> _Rates:
    """The rates of one engine, from which those of its requests begin."""
    return _Rates(_PRIOR_WEIGHT)


class RequestAcceptance:
    """The rates of one request."""

    __slots__ = ("_engine", "_own")

    def __init__(self, engine: _Rates) -> None:
        self._engine = engine
        self._own = _Rates()

    def rate(self, grade: int) -> float:
        """The chance that a guess is right, if those before it are."""
        of_engine = self._engine.right[grade] / max(self._engine.tried[grade], 1e-9)
        right = self._own.right[grade] + _PRIOR_WEIGHT * of_engine
        return min(0.98, right / (self._own.tried[grade] + _PRIOR_WEIGHT))

    def observe(self, grade: int, num_drafts: int, num_right: int) -> None:
        """The first `num_right` of `num_drafts` guesses were right. What follows a wrong one says
        nothing."""
        num_tried = min(num_drafts, num_right + 1)
        self._own.add(grade, num_right, num_tried, _KEPT)
        self._engine.add(grade, num_right, num_tried, _KEPT_BY_ENGINE)

    def fade(self) -> None:
        """A step passed without guesses."""
        for grade in range(NUM_GRADES):
            self._own.add(grade, 0, 0, _KEPT)


_WEIGHT = 0.2
"""Weight of a new measurement."""
_OUTLIER = 2.0
"""A step that took this many times as long as those before counts as this many times at most."""
_EXACT = 16
"""Up to this number of rows each number is kept by itself; above, eight together."""
_UNKNOWN_ROW = 0.05
"""Share of the nearest known step that a row more is assumed to take until it was tried."""


class RowCosts:
    """Seconds by number of rows."""

    def __init__(self) -> None:
        self._rows: list[int] = []
        self._seconds: list[float] = []
        """Parallel to `_rows`, which are sorted."""

    def observe(self, num_rows: int, seconds: float) -> None:
        """A step of so many rows took `seconds`."""
        rows = _bucket(num_rows)
        place = bisect_left(self._rows, rows)
        if place == len(self._rows) or self._rows[place] != rows:
            self._rows.insert(place, rows)
            self._seconds.insert(place, seconds)
            return
        known = self._seconds[place]
        self._seconds[place] += _WEIGHT * (min(seconds, _OUTLIER * known) - known)

    def seconds(self, num_rows: int) -> float:
        """Seconds that a step of this many rows takes: measured, or estimated from its neighbours.
        1 while nothing is known."""
        rows, known, seconds = _bucket(num_rows), self._rows, self._seconds
        if not known:
            return 1.0
        place = bisect_left(known, rows)
        if place < len(known) and known[place] == rows:
            return seconds[place]
        if place == 0:
            return seconds[0]
        before, rows_before = seconds[place - 1], known[place - 1]
        if place == len(known):
            return before * (1 + _UNKNOWN_ROW * (rows - rows_before))
        share = (rows - rows_before) / (known[place] - rows_before)
        return before + share * max(0.0, seconds[place] - before)


def _bucket(num_rows: int) -> int:
    return num_rows if num_rows <= _EXACT else -(-num_rows // 8) * 8
