"""`LoRASeries`: which adapters the requests in the engine use."""

from __future__ import annotations

import time
from collections import Counter

from quire.metrics.series import Gauge, MetricSet

_LABELS = ("max_lora", "running_lora_adapters", "waiting_lora_adapters")


class LoRASeries:
    """One series, whose labels are the adapters of now and whose value is the time, as vLLM has
    it."""

    def __init__(self, make: MetricSet, max_loras: int) -> None:
        self._max_loras = str(max_loras)
        self._running: Counter[str] = Counter()
        self._waiting: Counter[str] = Counter()
        self._info = make.gauges(
            "vllm:lora_requests_info", "Running stats on lora requests.", _LABELS, []
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
