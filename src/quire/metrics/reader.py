"""Metrics as vLLM's Python API gives them: an object for each series, with its value now.

Called by `LLM.get_metrics`. Names and fields are vLLM's.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.metrics import series
from quire.metrics.series import MetricSet

_PREFIX = "vllm:"


@dataclass
class Metric:
    """A name and labels; `engine` and `model_name` are always among them."""

    name: str
    labels: dict[str, str]


@dataclass
class Counter(Metric):
    """A number that only grows."""

    value: int


@dataclass
class Vector(Metric):
    """Counters in order. Nothing here is one; the type is vLLM's."""

    values: list[int]


@dataclass
class Gauge(Metric):
    """A number that is what it is now."""

    value: float


@dataclass
class Histogram(Metric):
    """How many values were counted, and their sum."""

    count: int
    sum: float
    buckets: dict[str, int]
    """By upper bound how many were not above it; the last one is `+Inf`."""


def read_metrics(metric_set: MetricSet) -> list[Metric]:
    """Every series under one of vLLM's names."""
    found: list[Metric] = []
    for family in metric_set.families:
        if not family.name.startswith(_PREFIX):
            continue
        for values, one in family.series.items():
            if isinstance(one, series.Summary):
                continue  # of no kind that vLLM's API has
            own = dict(zip(family.label_names, values, strict=True))
            found.append(_metric(family.name, {**metric_set.base_labels, **own}, one))
    return found


def _metric(
    name: str,
    labels: dict[str, str],
    one: series.Counter | series.Gauge | series.Histogram,
) -> Metric:
    if isinstance(one, series.Histogram):
        return Histogram(name, labels, one.count, one.sum, dict(one.cumulative()))
    if isinstance(one, series.Counter):
        return Counter(name, labels, int(one.value))
    return Gauge(name, labels, one.value)
