"""`RowCosts`: the time of a step without prompts, by its number of rows (tokens). It is learned
from the steps themselves."""

from __future__ import annotations

from bisect import bisect_left

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
