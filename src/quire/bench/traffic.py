"""When requests are sent: all at once, at a rate, or at a rate that grows.

Knows arrival times and nothing of what is sent. The distribution is vLLM bench's: gamma
distributed intervals, of which a burstiness of 1 is a Poisson process.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from quire.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficArgs:
    """Options for the arrival of requests."""

    request_rate: float = math.inf
    """Requests per second; inf sends all of them at once."""
    burstiness: float = 1.0
    """Shape of the intervals' gamma distribution: 1 is a Poisson process, less is burstier,
    inf gives constant intervals."""
    max_concurrency: int | None = None
    """Maximum number of requests in flight; waiting here does not count as latency."""
    ramp_up_strategy: Literal["linear", "exponential"] | None = None
    """Increase the rate during the run instead of using --request-rate."""
    ramp_up_start_rps: int | None = None
    """Rate at the first request."""
    ramp_up_end_rps: int | None = None
    """Rate at the last request."""

    def __post_init__(self) -> None:
        if not self.request_rate > 0 or not self.burstiness > 0:
            raise ConfigError("--request-rate and --burstiness must be positive")
        if self.max_concurrency is not None and self.max_concurrency < 1:
            raise ConfigError("--max-concurrency must be at least 1")
        if self.ramp_up_strategy is not None:
            self._check_ramp()

    def _check_ramp(self) -> None:
        start, end = self.ramp_up_start_rps, self.ramp_up_end_rps
        if not math.isinf(self.request_rate):
            raise ConfigError("--ramp-up-strategy sets the rate; leave --request-rate out")
        if start is None or end is None:
            raise ConfigError("--ramp-up-strategy needs --ramp-up-start-rps and --ramp-up-end-rps")
        if not 0 < start <= end:
            raise ConfigError(
                f"the rate must grow from a positive start: got {start} to {end}; try 1 to 10"
            )

    def rate_at(self, index: int, count: int) -> float:
        """Requests per second when request `index` of `count` is due."""
        if self.ramp_up_strategy is None:
            return self.request_rate
        start, end = float(self.ramp_up_start_rps or 1), float(self.ramp_up_end_rps or 1)
        progress = index / max(count - 1, 1)
        if self.ramp_up_strategy == "linear":
            return start + (end - start) * progress
        return float(start * (end / start) ** progress)


def arrival_times(args: TrafficArgs, count: int, seed: int) -> list[float]:
    """Seconds after the start at which each of `count` requests is due, ascending.

    A constant rate is scaled so that the last arrival is where the mean rate puts it.
    """
    if math.isinf(args.request_rate) and args.ramp_up_strategy is None:
        return [0.0] * count
    rng = np.random.RandomState(seed)
    delays = []
    for index in range(count):
        rate = args.rate_at(index, count)
        if math.isinf(args.burstiness):
            delays.append(1.0 / rate)
        else:
            delays.append(float(rng.gamma(args.burstiness, 1.0 / (rate * args.burstiness))))
    times = np.cumsum(delays)
    if args.ramp_up_strategy is None and times[-1] > 0:
        times *= (count / args.request_rate) / times[-1]
    return [float(time) for time in times]
