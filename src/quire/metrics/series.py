"""Counters, gauges and histograms that are cheap to update.

They are plain objects, written by one thread, and converted to Prometheus' format only when
`/metrics` is read (`exposition`). Label values are set when a series is created, never by a
request, so their number is bounded.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Generic, Literal, TypeVar

Kind = Literal["counter", "gauge", "histogram", "summary"]


class Counter:
    """A number that only increases."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1) -> None:
        """Add `amount`, which must not be negative."""
        self.value += amount


class Gauge:
    """A number that may go up and down."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def set(self, value: float) -> None:
        """Replace the value."""
        self.value = value


class Histogram:
    """Counts of values per bucket, and their sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` must be ascending; a last bound of infinity is implied."""
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value `times` times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    @property
    def count(self) -> int:
        """Number of counted values."""
        return sum(self.counts)

    def cumulative(self) -> list[tuple[str, int]]:
        """Each bound as text, the last one `+Inf`, with the number of values at or below it."""
        names = [*(str(float(bound)) for bound in self.bounds), "+Inf"]
        return list(zip(names, accumulate(self.counts), strict=True))


class Summary:
    """The number of values and their sum."""

    __slots__ = ("count", "sum")

    def __init__(self) -> None:
        self.count = 0
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.count += 1
        self.sum += value


Series = TypeVar("Series", Counter, Gauge, Histogram, Summary)


@dataclass(slots=True)
class Family(Generic[Series]):
    """All series with one name, distinguished by their label values."""

    name: str
    documentation: str
    kind: Kind
    label_names: tuple[str, ...]
    series: dict[tuple[str, ...], Series]

    def of(self, *label_values: str) -> Series:
        """The series with these label values, which must exist."""
        return self.series[label_values]
