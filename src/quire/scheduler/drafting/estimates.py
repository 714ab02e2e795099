"""Estimates for the choice of drafts: `Acceptance`, how often guesses are right, for each
grade of each request; `RowCosts`, the time of a step without prompts, by its rows (tokens)."""

from __future__ import annotations

from bisect import bisect_left

from quire.scheduler.drafting.proposer import NUM_GRADES

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


class Acceptance:
    """The rates of one engine, from which those of its requests begin."""

    def __init__(self) -> None:
        self._engine = _Rates(_PRIOR_WEIGHT)

    def begin(self) -> RequestAcceptance:
        """The rates of a new request."""
        return RequestAcceptance(self._engine)


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
