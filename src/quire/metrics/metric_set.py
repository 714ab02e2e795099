"""`MetricSet`: the families of metrics of one engine, as they are declared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from quire.metrics.series import Counter, Family, Gauge, Histogram, Summary


@dataclass(slots=True)
class MetricSet:
    """The families of one engine, all with the same base labels."""

    base_labels: Mapping[str, str]
    families: list[Family[Counter] | Family[Gauge] | Family[Histogram] | Family[Summary]] = field(
        default_factory=list
    )

    def counter(self, name: str, documentation: str) -> Counter:
        """Create a counter without further labels."""
        return self.counters(name, documentation, (), [()]).of()

    def counters(
        self,
        name: str,
        documentation: str,
        label_names: tuple[str, ...],
        label_values: Sequence[tuple[str, ...]],
    ) -> Family[Counter]:
        """Create counters, one for each tuple of label values."""
        series = {values: Counter() for values in label_values}
        family = Family(name, documentation, "counter", label_names, series)
        self.families.append(family)
        return family

    def gauge(self, name: str, documentation: str) -> Gauge:
        """Create a gauge without further labels."""
        return self.gauges(name, documentation, (), [()]).of()

    def gauges(
        self,
        name: str,
        documentation: str,
        label_names: tuple[str, ...],
        label_values: Sequence[tuple[str, ...]],
    ) -> Family[Gauge]:
        """Create gauges, one for each tuple of label values."""
        series = {values: Gauge() for values in label_values}
        family = Family(name, documentation, "gauge", label_names, series)
        self.families.append(family)
        return family

    def histogram(self, name: str, documentation: str, bounds: Sequence[float]) -> Histogram:
        """Create a histogram without further labels."""
        series: dict[tuple[str, ...], Histogram] = {(): Histogram(bounds)}
        self.families.append(Family(name, documentation, "histogram", (), series))
        return series[()]
