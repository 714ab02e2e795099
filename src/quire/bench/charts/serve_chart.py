"""The chart of `quire bench serve --plot`: output and requests over time, and the latencies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quire.bench import plot


def draw(summary: Mapping[str, Any]) -> str:
    """The run as SVG: tokens per second and requests in flight over time, and latencies."""
    begin = min(summary["start_times"], default=0.0)
    arrivals: list[float] = []
    spans: list[tuple[float, int]] = []
    for start, ttft, gaps, latency in zip(
        summary["start_times"], summary["ttfts"], summary["itls"], summary["latencies"], strict=True
    ):
        if ttft <= 0:
            continue
        moment = start - begin + ttft
        arrivals.append(moment)
        for gap in gaps:
            moment += gap
            arrivals.append(moment)
        spans += [(start - begin, 1), (start - begin + latency, -1)]
    in_flight, level = [], 0
    for when, change in sorted(spans):
        in_flight.append((when, float(level)))  # a step, not a slope
        level += change
        in_flight.append((when, float(level)))
    per_second = _per_second(arrivals)
    wide, half = plot.Box(70, 60, 850, 150), 390
    return plot.document(
        960, 640,
        plot.line_chart(wide, "Output", "tokens/s", [plot.Series("tokens/s", per_second)]),
        plot.line_chart(plot.Box(70, 270, 850, 120), "In flight", "requests",
                        [plot.Series("requests", in_flight)]),
        plot.histogram(plot.Box(70, 460, half, 130), "Time to first token", "ms",
                       [1000 * t for t in summary["ttfts"] if t > 0]),
        plot.histogram(plot.Box(530, 460, half, 130), "Between tokens", "ms",
                       [1000 * gap for gaps in summary["itls"] for gap in gaps]),
    )  # fmt: skip


def _per_second(arrivals: Sequence[float]) -> list[tuple[float, float]]:
    if not arrivals:
        return []
    counts = [0] * (int(max(arrivals)) + 1)
    for when in arrivals:
        counts[int(when)] += 1
    return [(second + 0.5, float(count)) for second, count in enumerate(counts)]
