"""Current metrics in the form of vLLM's Python API: one object per series.

Called by `LLM.get_metrics`. Names and fields are vLLM's.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.metrics import series
from quire.metrics.series import MetricSet

_PREFIX = "vllm:"


@dataclass
class Metric:
    """A name and labels, which always include `engine` and `model_name`."""

    name: str
    labels: dict[str, str]


@dataclass
class Counter(Metric):
    """A number that only increases."""

    value: int


@dataclass
class Vector(Metric):
    """A list of counters. The type is vLLM's; Quire has no such metric."""

    values: list[int]


@dataclass
class Gauge(Metric):
    """A number that may go up and down."""

    value: float


@dataclass
class Histogram(Metric):
    """Distribution of the observed values, with their count and sum."""

    count: int
    sum: float
    buckets: dict[str, int]
    """Number of values at or below each upper bound; the last bound is `+Inf`."""


def read_metrics(metric_set: MetricSet) -> list[Metric]:
    """All series with vLLM's names."""
    found: list[Metric] = []
    for family in metric_set.families:
        if not family.name.startswith(_PREFIX):
            continue
        for values, one in family.series.items():
            if isinstance(one, series.Summary):
                continue  # vLLM's API has no such type
            own = dict(zip(family.label_names, values, strict=True))
            found.append(_metric(family.name, {**metric_set.base_labels, **own}, one))
    return found


def _metric(
    name: str, labels: dict[str, str], one: series.Counter | series.Gauge | series.Histogram
) -> Metric:
    if isinstance(one, series.Histogram):
        return Histogram(name, labels, one.count, one.sum, dict(one.cumulative()))
    if isinstance(one, series.Counter):
        return Counter(name, labels, int(one.value))
    return Gauge(name, labels, one.value)
