"""The metrics of parts that an engine may have: adapters, ranks and images."""

from __future__ import annotations

import time
from collections import Counter as Counts
from collections.abc import Mapping, Sequence
from typing import Any

from quire.metrics.metric_set import MetricSet
from quire.metrics.series import Counter, Gauge

_LORA_LABELS = ("max_lora", "running_lora_adapters", "waiting_lora_adapters")


class LoRASeries:
    """One series, whose labels are the adapters of now and whose value is the time, as vLLM has
    it."""

    def __init__(self, make: MetricSet, max_loras: int) -> None:
        self._max_loras = str(max_loras)
        self._running: Counts[str] = Counts()
        self._waiting: Counts[str] = Counts()
        self._info = make.gauges(
            "vllm:lora_requests_info", "Running stats on lora requests.", _LORA_LABELS, []
        )
        self._show()

    def waits(self, name: str, num_requests: int) -> None:
        """Requests with an adapter were passed to the core."""
        self._waiting[name] += num_requests
        self._show()

    def runs(self, name: str) -> None:
        """A request has got its first token."""
        self._waiting[name] -= 1
        self._running[name] += 1
        self._show()

    def ends(self, name: str, *, has_tokens: bool) -> None:
        """A request ended."""
        (self._running if has_tokens else self._waiting)[name] -= 1
        self._show()

    def _show(self) -> None:
        running, waiting = (",".join(sorted(+counts)) for counts in (self._running, self._waiting))
        gauge = Gauge()
        gauge.set(time.time())
        self._info.series.clear()
        self._info.series[self._max_loras, running, waiting] = gauge


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


class ImageSeries:
    """The cache of encoded images."""

    def __init__(self, make: MetricSet) -> None:
        self.queries = make.counter(
            "vllm:mm_cache_queries", "Multi-modal cache queries, in terms of number of images."
        )
        self.hits = make.counter(
            "vllm:mm_cache_hits", "Multi-modal cache hits, in terms of number of images."
        )

    def show(self, queries: int, hits: int) -> None:
        """Takes the engine's totals."""
        self.queries.inc(max(0, queries - self.queries.value))
        self.hits.inc(max(0, hits - self.hits.value))
