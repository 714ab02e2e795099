"""The metrics of ranks and of several engines, from totals that they keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quire.metrics.series import Counter, MetricSet

_LABELS = ("engine", "stage", "part")


class RankSeries:
    """Series of each rank, from its first report on."""

    def __init__(self, make: MetricSet) -> None:
        self.restarts = make.counter(
            "quire:engine_restarts", "Engines that died and were started again."
        )
        self._waited = make.counters(
            "quire:rank_waited_seconds", "Seconds that a rank waited for other ranks.", _LABELS, []
        )
        self._received = make.counters(
            "quire:rank_received_bytes",
            "Bytes that a rank got from other ranks over sockets.",
            _LABELS,
            [],
        )
        self.latest: list[dict[str, Any]] = []
        """The last reports of all ranks."""

    def show(self, reports: Sequence[Mapping[str, Any]]) -> None:
        """Update the metrics with what `Worker.rank_stats` has returned, by rank."""
        self.latest = [dict(one) for one in reports]
        for one in reports:
            labels = tuple(str(one[name]) for name in _LABELS)
            self._waited.series.setdefault(labels, Counter()).value = one["waited_s"]
            self._received.series.setdefault(labels, Counter()).value = one["received_bytes"]
