"""The metrics of the KV store."""

from __future__ import annotations

from collections.abc import Mapping

from quire.metrics.metric_set import MetricSet
from quire.metrics.series import Counter, Family, Gauge

_COUNTERS = {
    "hit_tokens": ("tier", "Prompt tokens whose K/V was loaded from the KV store."),
    "load_bytes": ("tier", "Bytes of K/V that were read, verified and copied."),
    "load_seconds": ("tier", "Seconds of all threads spent on loading."),
    "store_bytes": ("tier", "Bytes of chunks that were written."),
    "errors": ("tier", "Reads, writes and lookups that failed."),
    "corrupt": ("tier", "Chunks that failed verification and were dropped."),
    "store_dropped": ("reason", "Chunks that were not stored."),
    "load_abandoned": ("reason", "Loads that were given up before their end."),
    "gate_skipped_tokens": ("reason", "Stored tokens that were computed instead of loaded."),
}
_GAUGES = {
    "usage_bytes": "Bytes of chunks that a tier holds.",
    "usage_chunks": "Chunks that a tier holds.",
}


class KVStoreSeries:
    """Families without series until the first event."""

    def __init__(self, make: MetricSet) -> None:
        self._counters: dict[str, Family[Counter]] = {
            name: make.counters(f"quire:kv_store_{name}", text, (label,), [])
            for name, (label, text) in _COUNTERS.items()
        }
        self._gauges: dict[str, Family[Gauge]] = {
            name: make.gauges(f"quire:kv_store_{name}", text, ("tier",), [])
            for name, text in _GAUGES.items()
        }

    def hit_tokens(self) -> dict[str, int]:
        """Loaded prompt tokens by tier; every tier with chunks has an entry."""
        tiers = {tier: 0 for (tier,) in self._gauges["usage_bytes"].series}
        loaded = self._counters["hit_tokens"].series.items()
        return tiers | {tier: int(counter.value) for (tier,), counter in loaded}

    def show(
        self, sums: Mapping[str, Mapping[str, float]], usage: Mapping[str, tuple[int, int]]
    ) -> None:
        """Update the metrics. `sums`: totals by name and label; `usage`: chunks and bytes by
        tier."""
        for name, family in self._counters.items():
            for label, value in sums.get(name, {}).items():
                family.series.setdefault((label,), Counter()).value = value
        for tier, (num_chunks, num_bytes) in usage.items():
            self._gauges["usage_chunks"].series.setdefault((tier,), Gauge()).set(num_chunks)
            self._gauges["usage_bytes"].series.setdefault((tier,), Gauge()).set(num_bytes)
