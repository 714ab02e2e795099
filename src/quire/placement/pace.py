"""`Paces`: the engines that take longer to the first tokens of requests than others do."""

from __future__ import annotations

from dataclasses import dataclass, field

_HALF_LIFE_S = 10.0
"""After so many seconds, a measured time counts half."""
_KEPT = 0.8
"""How much a request of an engine counts when the next one has come."""
_ASSUMED = 4
"""Requests of each engine that are assumed to have taken the usual time, besides those measured."""
_SLOW = 1.5
"""An engine is slow if it takes so many times as long as all do; less is chance."""
_MOST_TIMES = 6.0
"""Most times as long as expected that a request counts: its engine may have been stopped."""
_SMOOTHING = 0.05


@dataclass(slots=True)
class Pace:
    """Sums over requests; the older they are, the less they count."""

    seconds: float = 0.0
    cost: float = 0.0
    """The expected times, in any unit."""
    at: float = 0.0
    """When the last request was added."""
    is_slow: bool = False

    def add(self, seconds: float, cost: float, now: float, kept: float = 1.0) -> None:
        """Adds a request. `kept`: how much those before it still count."""
        rest = kept * self.rest(now)
        self.seconds = self.seconds * rest + seconds
        self.cost = self.cost * rest + cost
        self.at = now

    def rest(self, now: float) -> float:
        """How much the sums count now."""
        return float(0.5 ** ((now - self.at) / _HALF_LIFE_S))


@dataclass(slots=True)
class Paces:
    """The pace of all engines, with which that of each is compared."""

    _all: Pace = field(default_factory=Pace)
    _mean_cost: float = 256.0

    @property
    def usual(self) -> float:
        """Seconds for a unit of cost; 0: not known."""
        return self._all.seconds / self._all.cost if self._all.cost else 0.0

    def measure(self, pace: Pace, seconds: float, cost: float, now: float) -> None:
        """A request of an engine has waited so long for its first token."""
        if self.usual:
            seconds = min(seconds, _MOST_TIMES * self.usual * cost)
        pace.add(seconds, cost, now, _KEPT)
        self._all.add(seconds, cost, now)
        self._mean_cost += _SMOOTHING * (cost - self._mean_cost)
        pace.is_slow = self.times_slower(pace, now) > 1

    def times_slower(self, pace: Pace, now: float) -> float:
        """How many times longer the engine takes than others; 1 if that may be chance."""
        if not self.usual:
            return 1.0
        rest, assumed = pace.rest(now), _ASSUMED * self._mean_cost
        measured = pace.seconds * rest + self.usual * assumed
        return max(1.0, measured / (self.usual * (pace.cost * rest + assumed)) / _SLOW)

    def done(self, seconds: float) -> float:
        """The cost that an engine of the usual pace has computed in so many seconds."""
        return seconds / self.usual if self.usual else 0.0

    def overdue(self, since: float, cost: float, heard_at: float, now: float) -> float:
        """How long an engine has sent nothing although a first token was due, as a cost: it is
        expected to go on for as long again. `since`: when the request came to the engine."""
        due_at = max(since + _SLOW * cost * self.usual, heard_at)
        return (now - due_at) / self.usual if self.usual and now > due_at else 0.0
