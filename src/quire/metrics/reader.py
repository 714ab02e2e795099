"""Current metrics in the form of vLLM's Python API: one object per series.

Called by `LLM.get_metrics`. Names and fields are vLLM's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quire.metrics import series
from quire.metrics.metric_set import MetricSet

_PREFIX = "vllm:"
_BY_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos"
"""The one metric that vLLM returns as a `Vector`."""


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
    """Counters by position, from 0."""

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
        if family.name == _BY_POSITION:
            found.append(_vector(family, metric_set.base_labels))
            continue
        for values, one in family.series.items():
            if isinstance(one, series.Summary):
                continue  # vLLM's API has no such type
            own = dict(zip(family.label_names, values, strict=True))
            found.append(_metric(family.name, {**metric_set.base_labels, **own}, one))
    return found


def _vector(family: series.Family[Any], labels: Mapping[str, str]) -> Vector:
    """The counters of a family whose only label is a position."""
    counts = {int(position): int(one.value) for (position,), one in family.series.items()}
    values = [counts.get(position, 0) for position in range(max(counts, default=-1) + 1)]
    return Vector(family.name, {**labels}, values)


def _metric(
    name: str, labels: dict[str, str], one: series.Counter | series.Gauge | series.Histogram
) -> Metric:
    if isinstance(one, series.Histogram):
        return Histogram(name, labels, one.count, one.sum, dict(one.cumulative()))
    if isinstance(one, series.Counter):
        return Counter(name, labels, int(one.value))
    return Gauge(name, labels, one.value)
