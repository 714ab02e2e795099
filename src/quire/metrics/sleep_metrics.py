"""The metrics of sleep and waking."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from quire.metrics.buckets import SLEEP_DURATION_S
from quire.metrics.metric_set import MetricSet
from quire.metrics.series import Family, Histogram

Operation = Literal["sleep", "release_kv_cache_memory", "wake"]
_OPERATIONS: tuple[Operation, ...] = ("sleep", "release_kv_cache_memory", "wake")


class SleepMetrics:
    """Durations by operation. Owned by the event loop."""

    def __init__(self) -> None:
        self.metric_set = MetricSet({})
        self._durations: Family[Histogram] = Family(
            "vllm:sleep_mode_operation_duration_seconds",
            "Duration of one sleep-mode operation.",
            "histogram",
            ("operation",),
            {(name,): Histogram(SLEEP_DURATION_S) for name in _OPERATIONS},
        )
        self.metric_set.families.append(self._durations)
        self._in_flight = self.metric_set.gauges(
            "vllm:sleep_mode_operations_in_flight",
            "Sleep-mode operations currently awaited.",
            ("operation",),
            [(name,) for name in _OPERATIONS],
        )

    @contextmanager
    def record(self, operation: Operation) -> Iterator[None]:
        """Measure the block."""
        in_flight = self._in_flight.of(operation)
        in_flight.set(in_flight.value + 1)
        begin = time.perf_counter()
        try:
            yield
        finally:
            in_flight.set(in_flight.value - 1)
            self._durations.of(operation).observe(time.perf_counter() - begin)
