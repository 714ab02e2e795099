"""`Acceptance`: how often guesses are right, learned for each grade of each request."""

from __future__ import annotations

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
