"""Metric sets in Prometheus' text format, created with prometheus_client.

Called only when `/metrics` is read, not when values are recorded. Adds the process metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    SummaryMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from quire.metrics.metric_set import MetricSet
from quire.metrics.series import Family

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Exposition:
    """All metrics that one server exposes: the given sets and its process metrics."""

    def __init__(self, sets: Callable[[], Sequence[MetricSet]]) -> None:
        """`sets` returns those of the moment: engines come and go."""
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._registry.register(_SetCollector(sets))

    def text(self) -> bytes:
        """The current body of `/metrics`."""
        return generate_latest(self._registry)


class _SetCollector(Collector):
    """Converts Quire's families to those of prometheus_client."""

    def __init__(self, sets: Callable[[], Sequence[MetricSet]]) -> None:
        self._sets = sets

    def collect(self) -> Iterator[Metric]:
        found: dict[str, Metric] = {}
        for metric_set in self._sets():
            names, values = list(metric_set.base_labels), list(metric_set.base_labels.values())
            for family in metric_set.families:
                metric = _family(family, names, values)
                found.setdefault(metric.name, metric)
                if found[metric.name] is not metric:  # the same metric of another engine
                    found[metric.name].samples += metric.samples
        yield from found.values()


def _family(family: Family, names: list[str], values: list[str]) -> Metric:  # type: ignore[type-arg]
    labels = [*names, *family.label_names]
    if family.kind == "histogram":
        result = HistogramMetricFamily(family.name, family.documentation, labels=labels)
        for own, histogram in family.series.items():
            result.add_metric([*values, *own], histogram.cumulative(), histogram.sum)
        return result
    if family.kind == "summary":
        summaries = SummaryMetricFamily(family.name, family.documentation, labels=labels)
        for own, summary in family.series.items():
            summaries.add_metric([*values, *own], summary.count, summary.sum)
        return summaries
    make = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    metric = make(family.name, family.documentation, labels=labels)
    for own, series in family.series.items():
        metric.add_metric([*values, *own], series.value)
    return metric
