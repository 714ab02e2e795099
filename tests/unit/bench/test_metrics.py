"""Statistics against results worked out by hand."""

from __future__ import annotations

import random

import pytest

from quire.bench.load import RequestResult
from quire.bench.metrics import count_good, parse_goodput, peaks, spread, summarise
from quire.errors import ConfigError


def result(
    start: float, ttft: float, gaps: list[float], tokens: int, **more: float
) -> RequestResult:
    return RequestResult(
        prompt_len=10, is_success=True, start_time=start, ttft=ttft, itl=gaps,
        latency=ttft + sum(gaps), output_tokens=tokens, queue_time=more.get("queue", 0.0),
    )  # fmt: skip


RESULTS = [
    result(0.0, 0.1, [0.1, 0.3], 5),
    result(0.5, 0.3, [0.2], 2, queue=1.0),
    result(2.0, 0.2, [], 1),
    RequestResult(prompt_len=10, error="503: full"),
]


def test_the_summary() -> None:
    names = ["ttft", "tpot", "itl", "e2el", "client_queue_time"]
    found = summarise(RESULTS, 4.0, names, [50.0, 99.0], {"ttft": 0.25})
    assert (found["completed"], found["failed"]) == (3, 1)
    assert (found["total_input_tokens"], found["total_output_tokens"]) == (30, 8)
    assert found["request_throughput"] == 0.75
    assert found["output_throughput"] == 2.0
    assert found["total_token_throughput"] == 9.5
    assert found["request_goodput"] == 0.5
    assert found["mean_ttft_ms"] == pytest.approx(200)
    # (0.5 - 0.1) / 4 and (0.5 - 0.3) / 1; the answer of one token has none
    assert found["mean_tpot_ms"] == pytest.approx(150)
    assert found["median_itl_ms"] == found["p50_itl_ms"] == pytest.approx(200)
    assert found["mean_e2el_ms"] == pytest.approx(400)
    assert found["p99_client_queue_time_ms"] == pytest.approx(980)
    assert found["errors"][3] == "503: full"
    assert len(found["itls"]) == len(found["generated_texts"]) == 4


def test_nothing_succeeded() -> None:
    found = summarise([RESULTS[3]], 1.0, ["ttft"], [99.9], {})
    assert found["completed"] == 0
    assert found["request_goodput"] is None
    assert found["p99.9_ttft_ms"] == 0.0


def test_goodput_wants_every_bound_kept() -> None:
    assert count_good(RESULTS, {"ttft": 0.3, "tpot": 0.15, "e2el": 0.5}) == 2
    assert count_good(RESULTS, {"e2el": 0.3}) == 1
    assert parse_goodput(["ttft:200", "e2el:1500"]) == {"ttft": 0.2, "e2el": 1.5}
    for wrong in ("ttft", "ttft:fast", "itl:5", "ttft:-1"):
        with pytest.raises(ConfigError, match="MILLISECONDS"):
            parse_goodput([wrong])


def test_peaks() -> None:
    """Of 2.2 s in two parts, the first has 5 + 2 tokens."""
    tokens, in_flight = peaks(RESULTS[:3])
    assert (tokens, in_flight) == (pytest.approx(7 / 1.1), 2)
    assert peaks([]) == (0.0, 0)


def test_no_peak_is_below_the_mean() -> None:
    generator = random.Random(4)
    for _ in range(200):
        longest = generator.choice([0.02, 0.5, 3.0])
        results = []
        for _ in range(generator.randrange(1, 6)):
            gaps = [generator.uniform(0, longest / 9) for _ in range(generator.randrange(9))]
            start, ttft = generator.uniform(0, longest), generator.uniform(1e-4, longest)
            results.append(result(start, ttft, gaps, len(gaps) + generator.randrange(1, 5)))
        begin = min(one.start_time for one in results)
        duration = max(one.start_time + one.latency for one in results) - begin
        found = summarise(results, duration, [], [], {})
        assert found["max_output_tokens_per_s"] >= found["output_throughput"] * (1 - 1e-9)


def test_spread() -> None:
    found = spread("x", [1.0, 2.0, 3.0], [50.0])
    assert found["mean_x_ms"] == found["p50_x_ms"] == 2000
    assert found["std_x_ms"] == pytest.approx(816.4966)
