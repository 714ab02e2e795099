"""`Restarts`: how often, and after what pause, an engine that has died is started again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from quire.system import clock

DEFAULT_RESTARTS = 3
_WINDOW_S = 600.0
"""An engine that has worked for so long may die as often as a new one."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0


@dataclass(slots=True)
class Restarts:
    """The deaths of several engines. One thread."""

    limit: int
    """Most restarts of an engine within ten minutes."""
    now: Callable[[], float] = clock.now
    _deaths: dict[int, list[float]] = field(default_factory=dict)

    def pause_after_death(self, engine: int) -> float | None:
        """An engine has died: the seconds until it is to be started again, which double each time;
        None: no more."""
        now = self.now()
        recent = [time for time in self._deaths.get(engine, []) if now - time < _WINDOW_S]
        self._deaths[engine] = [*recent, now]
        if len(recent) >= self.limit:
            return None
        return min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** len(recent))
