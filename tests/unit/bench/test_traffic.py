"""Arrival times."""

from __future__ import annotations

import math

import numpy as np
import pytest

from quire.bench.load import TrafficArgs, arrival_times
from quire.errors import ConfigError


def test_without_a_rate_all_come_at_once() -> None:
    assert arrival_times(TrafficArgs(), 3, 0) == [0.0, 0.0, 0.0]


def test_a_poisson_process_keeps_its_rate() -> None:
    times = arrival_times(TrafficArgs(request_rate=50.0), 2000, 7)
    gaps = np.diff([0.0, *times])
    assert times[-1] == pytest.approx(2000 / 50)
    assert times == sorted(times)
    assert float(np.std(gaps) / np.mean(gaps)) == pytest.approx(1.0, abs=0.1)
    assert times == arrival_times(TrafficArgs(request_rate=50.0), 2000, 7)
    assert times != arrival_times(TrafficArgs(request_rate=50.0), 2000, 8)


def test_burstiness_shapes_the_gaps() -> None:
    for burstiness in (0.25, 4.0):
        args = TrafficArgs(request_rate=10.0, burstiness=burstiness)
        gaps = np.diff(arrival_times(args, 4000, 1))
        spread = float(np.std(gaps) / np.mean(gaps))
        assert spread == pytest.approx(1 / math.sqrt(burstiness), rel=0.1)
    beat = arrival_times(TrafficArgs(request_rate=4.0, burstiness=math.inf), 4, 0)
    assert beat == pytest.approx([0.25, 0.5, 0.75, 1.0])


@pytest.mark.parametrize("strategy", ["linear", "exponential"])
def test_a_ramp_gets_faster(strategy: str) -> None:
    args = TrafficArgs(
        ramp_up_strategy=strategy,  # type: ignore[arg-type]
        ramp_up_start_rps=1, ramp_up_end_rps=64, burstiness=math.inf,
    )  # fmt: skip
    gaps = np.diff(arrival_times(args, 100, 0))
    assert list(gaps) == sorted(gaps, reverse=True)
    assert args.rate_at(0, 100) == 1
    assert args.rate_at(99, 100) == pytest.approx(64)


@pytest.mark.parametrize(
    "wrong",
    [
        {"request_rate": 0.0}, {"burstiness": -1.0}, {"max_concurrency": 0},
        {"ramp_up_strategy": "linear"},
        {"ramp_up_strategy": "linear", "ramp_up_start_rps": 5, "ramp_up_end_rps": 2},
        {"ramp_up_strategy": "linear", "request_rate": 3.0},
    ],
)  # fmt: skip
def test_wrong_options_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        TrafficArgs(**wrong)  # type: ignore[arg-type]
