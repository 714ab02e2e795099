"""Counters, gauges and histograms that cost a few additions to record.

They are plain objects, written by one thread, and are turned into Prometheus' format only when
`/metrics` is read (`exposition`). Label values are given when a series is made, never by a request:
their number is fixed for good.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Generic, Literal, TypeVar

Kind = Literal["counter", "gauge", "histogram", "summary"]


class Counter:
    """A number that only grows."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1) -> None:
        """Adds `amount`, which is not negative."""
        self.value += amount


class Gauge:
    """A number that is what it is now."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def set(self, value: float) -> None:
        """Replaces the value."""
        self.value = value


class Histogram:
    """How often values fell at or below each bound, and their sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` ascend; a last one of infinity is implied."""
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Counts a value that came so many times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    @property
    def count(self) -> int:
        """Values counted."""
        return sum(self.counts)

    def cumulative(self) -> list[tuple[str, int]]:
        """Each bound as text, the last one `+Inf`, with how many values were not above it."""
        names = [*(str(float(bound)) for bound in self.bounds), "+Inf"]
        return list(zip(names, accumulate(self.counts), strict=True))


class Summary:
    """How many values there were, and their sum."""

    __slots__ = ("count", "sum")

    def __init__(self) -> None:
        self.count = 0
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Counts one value."""
        self.count += 1
        self.sum += value


Series = TypeVar("Series", Counter, Gauge, Histogram, Summary)


@dataclass(slots=True)
class Family(Generic[Series]):
    """All series of one name, told apart by the values of their labels."""

    name: str
    documentation: str
    kind: Kind
    label_names: tuple[str, ...]
    series: dict[tuple[str, ...], Series]

    def of(self, *label_values: str) -> Series:
        """The series with these label values; they must be among those it was made with."""
        return self.series[label_values]


@dataclass(slots=True)
class MetricSet:
    """The families of one engine, all with the same leading labels."""

    base_labels: Mapping[str, str]
    families: list[Family[Counter] | Family[Gauge] | Family[Histogram] | Family[Summary]] = field(
        default_factory=list
    )

    def counter(self, name: str, documentation: str) -> Counter:
        """A new counter without further labels."""
        return self.counters(name, documentation, (), [()]).of()

    def counters(
        self,
        name: str,
        documentation: str,
        label_names: tuple[str, ...],
        label_values: Sequence[tuple[str, ...]],
    ) -> Family[Counter]:
        """New counters, one for each tuple of label values."""
        series = {values: Counter() for values in label_values}
        family = Family(name, documentation, "counter", label_names, series)
        self.families.append(family)
        return family

    def gauge(self, name: str, documentation: str) -> Gauge:
        """A new gauge without further labels."""
        return self.gauges(name, documentation, (), [()]).of()

    def gauges(
        self,
        name: str,
        documentation: str,
        label_names: tuple[str, ...],
        label_values: Sequence[tuple[str, ...]],
    ) -> Family[Gauge]:
        """New gauges, one for each tuple of label values."""
        series = {values: Gauge() for values in label_values}
        family = Family(name, documentation, "gauge", label_names, series)
        self.families.append(family)
        return family

    def histogram(self, name: str, documentation: str, bounds: Sequence[float]) -> Histogram:
        """A new histogram without further labels."""
        series: dict[tuple[str, ...], Histogram] = {(): Histogram(bounds)}
        self.families.append(Family(name, documentation, "histogram", (), series))
        return series[()]
