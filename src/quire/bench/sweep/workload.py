"""`quire bench sweep serve_workload`: how latency grows with the load, from one request after the
other to all at once.

For each combination of settings, the two ends are measured, and levels of the load that lie evenly
between what they reached. Options are those of vLLM's sweep of this name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any, Literal

from quire.bench.sweep.serve import Sweep, SweepServeArgs
from quire.bench.sweep.server_process import ServerProcess
from quire.bench.sweep.settings import Setting
from quire.errors import ConfigError

_DEFAULT_NUM_PROMPTS = 1000
_CONCURRENCY, _NUM_PROMPTS = "max_concurrency", "num_prompts"
_DIGITS = 3
"""Significant digits of a rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepWorkloadArgs(SweepServeArgs):
    """Options of the sweep, and the load levels."""

    workload_var: Literal["request_rate", "max_concurrency"] = "request_rate"
    """Variable of the load: requests per second or concurrent requests."""
    workload_iters: int = 10
    """Number of load levels, including both ends."""


def run_workload_sweep(args: SweepWorkloadArgs) -> list[dict[str, Any]]:
    """Run the sweep; return the results of all runs. Raises ConfigError or BackendError."""
    return _WorkloadSweep(args).run()


class _WorkloadSweep(Sweep):
    """A sweep that measures each combination at several levels of the load."""

    def __init__(self, args: SweepWorkloadArgs) -> None:
        if args.workload_iters < 2:
            raise ConfigError(
                f"workload_iters must be at least 2, for both ends, got {args.workload_iters}"
            )
        super().__init__(args)
        self._variable, self._num_levels = args.workload_var, args.workload_iters
        if any(_value(setting, self._variable) is not None for setting in self.bench_settings):
            raise ConfigError(
                f"--bench-params sets {self._variable}, which --workload-var is to find; leave it "
                "out of the settings"
            )

    def measure(
        self, server: ServerProcess | None, serve: Setting, bench: Setting
    ) -> list[dict[str, Any]]:
        """All runs of one combination, from the least load to the greatest."""
        ends = [
            super(_WorkloadSweep, self).measure(server, serve, self._at(bench, users, users))
            for users in (1, self._num_prompts(bench))
        ]
        between: list[dict[str, Any]] = []
        if all(ends):
            low, high = (mean(map(self._reached, runs)) for runs in ends)
            for value in self._between(low, high):
                between += super().measure(server, serve, self._at(bench, value))
        return [*ends[0], *between, *ends[1]]

    def _at(self, bench: Setting, value: float, users: int | None = None) -> Setting:
        """A setting at one level of the load; `users`: most requests at once."""
        limit = {} if users is None else {_CONCURRENCY: users}
        options = {**bench.options, **limit, self._variable: value}
        name = [bench.name] if bench.name else []
        return Setting(options, "-".join([*name, "WL", f"{self._variable}={value}"]))

    def _between(self, low: float, high: float) -> Sequence[float]:
        steps = range(1, self._num_levels - 1)
        values = [low + (high - low) * step / (self._num_levels - 1) for step in steps]
        if self._variable == _CONCURRENCY:
            return sorted({max(1, round(value)) for value in values})
        return sorted({float(f"{value:.{_DIGITS}g}") for value in values if value > 0})

    def _reached(self, run: Mapping[str, Any]) -> float:
        try:
            rate = float(run["request_throughput"])
            if self._variable == _CONCURRENCY:
                return rate * float(run["mean_e2el_ms"]) / 1000
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"the result of the benchmark must contain {error}") from None
        if not math.isfinite(rate):
            raise ConfigError(
                f"request_throughput of the benchmark must be a finite number, got {rate}"
            )
        return rate

    def _num_prompts(self, bench: Setting) -> int:
        given = _value(bench, _NUM_PROMPTS)
        words = iter(self.bench_cmd)
        for word in words:
            flag, sign, text = word.partition("=")
            if given is None and flag.replace("_", "-") == "--num-prompts":
                given = text if sign else next(words, None)
        try:
            return _DEFAULT_NUM_PROMPTS if given is None else int(given)
        except (TypeError, ValueError):
            raise ConfigError(f"--num-prompts must be a number, got {given!r}") from None


def _value(setting: Setting, name: str) -> Any:
    try:
        return setting.get(name)
    except KeyError:
        return None
