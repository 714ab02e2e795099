"""The charts of `quire bench serve`: of one load (`--plot`), and the page of several (`--html`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from quire.bench import plot
from quire.bench.load import TrafficArgs
from quire.bench.metrics import spread
from quire.errors import ConfigError, quoted


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


_METRICS = {"ttft": "Time to first token", "itl": "Between two tokens", "e2el": "Whole reply"}
_BOX = plot.Box(64, 44, 470, 190)
_SIZE = (560, 270)


def parse_levels(text: str, traffic: TrafficArgs) -> Sequence[int | None]:
    """The numbers of requests at once, ascending; that of `traffic` if none is given. Raises
    ConfigError."""
    if not text.strip():
        return [traffic.max_concurrency]
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise ConfigError(f"--levels {quoted(text)} must be numbers of requests, such as 1,2,4,8")
    if traffic.max_concurrency is not None:
        raise ConfigError("--levels sets --max-concurrency; leave it out")
    return sorted({int(word) for word in words})


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """The results at one load."""

    level: int | None
    """Requests at once; None: no limit."""
    summary: Mapping[str, Any]
    latencies: Mapping[str, float]
    """`median_ttft_ms` and so on, for all metrics of the report."""

    @classmethod
    def of(cls, summary: Mapping[str, Any], level: int | None) -> LoadPoint:
        """From the summary of a run, with its lists."""
        is_good = [not error for error in summary["errors"]]
        samples = {
            "ttft": [one for one, good in zip(summary["ttfts"], is_good, strict=True) if good],
            "itl": [gap for gaps in summary["itls"] for gap in gaps],
            "e2el": [one for one, good in zip(summary["latencies"], is_good, strict=True) if good],
        }
        found: dict[str, float] = {}
        for name, values in samples.items():
            found |= spread(name, values, (90, 99))
        return cls(level, summary, found)

    @property
    def name(self) -> str:
        """The load as text."""
        return "no limit" if self.level is None else str(self.level)


def report(facts: Mapping[str, str], points: Sequence[LoadPoint]) -> str:
    """The HTML. `facts`: what was measured, by name."""
    title = f"Load on {facts['model']}"
    rows = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in facts.items())
    charts = "".join(f"<figure>{chart}</figure>" for chart in _charts(points))
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width'>"
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{escape(title)}</h1><p>{escape(_finding(points))}</p><dl>{rows}</dl>"
        f"<div class='charts'>{charts}</div>{_table(points)}</body></html>\n"
    )


def _finding(points: Sequence[LoadPoint]) -> str:
    best = max(points, key=lambda one: float(one.summary["output_throughput"]))
    least = points[0]
    return (
        f"The most output is {best.summary['output_throughput']:,.1f} tokens per second, with "
        f"{best.name} requests at once. With {least.name}, the first token comes after "
        f"{least.latencies['median_ttft_ms']:,.0f} ms and each further one after "
        f"{least.latencies['median_itl_ms']:,.1f} ms (medians)."
    )


def _charts(points: Sequence[LoadPoint]) -> list[str]:
    throughput = [
        _by_load("Output", "tokens/s", points, {"output": _of_summary("output_throughput")}),
        _by_load("Requests", "per second", points, {"requests": _of_summary("request_throughput")}),
    ]
    latencies = [
        _by_load(
            title,
            "ms",
            points,
            {
                "p99": _of_latency(f"p99_{name}_ms"),
                "p90": _of_latency(f"p90_{name}_ms"),
                "median": _of_latency(f"median_{name}_ms"),
            },
        )
        for name, title in _METRICS.items()
    ]
    return [*throughput, *latencies, _trade(points)]


def _of_summary(key: str) -> Callable[[LoadPoint], float]:
    return lambda point: float(point.summary[key])


def _of_latency(key: str) -> Callable[[LoadPoint], float]:
    return lambda point: point.latencies[key]


def _by_load(
    title: str,
    unit: str,
    points: Sequence[LoadPoint],
    values: Mapping[str, Callable[[LoadPoint], float]],
) -> str:
    places = [math.log2(point.level or 1) for point in points]
    series = [
        plot.Series(name, [(x, value(point)) for x, point in zip(places, points, strict=True)])
        for name, value in values.items()
    ]
    labels = [(x, point.name) for x, point in zip(places, points, strict=True)]
    chart = plot.line_chart(_BOX, title, unit, series, labels, marks_points=True)
    return plot.document(*_SIZE, chart, _x_title("requests at once"))


def _trade(points: Sequence[LoadPoint]) -> str:
    pairs = [
        (float(point.summary["output_throughput"]), point.latencies["median_itl_ms"], point.name)
        for point in points
    ]
    chart = plot.scatter_chart(
        _BOX, "Between two tokens by output", "median, ms", [(x, y) for x, y, _ in pairs], pairs
    )
    return plot.document(*_SIZE, chart, _x_title("output tokens/s; labels: requests at once"))


def _x_title(words: str) -> str:
    return plot.text(_BOX.left + _BOX.width / 2, _SIZE[1] - 4, words, size=11, anchor="middle")


def _table(points: Sequence[LoadPoint]) -> str:
    columns: dict[str, Callable[[LoadPoint], str]] = {
        "requests at once": lambda point: point.name,
        "answered": lambda point: f"{point.summary['completed']:,}",
        "failed": lambda point: f"{point.summary['failed']:,}",
        "seconds": lambda point: f"{point.summary['duration']:,.1f}",
        "requests/s": lambda point: f"{point.summary['request_throughput']:,.2f}",
        "output tokens/s": lambda point: f"{point.summary['output_throughput']:,.1f}",
        "all tokens/s": lambda point: f"{point.summary['total_token_throughput']:,.1f}",
    }
    for name, title in _METRICS.items():
        for statistic in ("median", "p99"):
            columns[f"{title.lower()}, {statistic}, ms"] = _shown_latency(f"{statistic}_{name}_ms")
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(show(point))}</td>" for show in columns.values()) + "</tr>"
        for point in points
    )
    return f"<div class='table'><table><tr>{head}</tr>{rows}</table></div>"


def _shown_latency(key: str) -> Callable[[LoadPoint], str]:
    return lambda point: f"{point.latencies[key]:,.1f}"


_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #231e19; background: #fffdf9; margin: 2rem auto;
  max-width: 1180px; padding: 0 1rem }
h1 { font-size: 1.6rem; margin: 0 }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1.2rem; color: #685e53 }
dt { font-weight: 600 } dd { margin: 0 }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(440px, 1fr)); gap: 1rem }
figure { margin: 0; border: 1px solid #e2d9ca; border-radius: 6px; overflow: hidden }
figure svg { width: 100%; height: auto; display: block }
.table { overflow-x: auto; margin-top: 1.5rem }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums }
th, td { text-align: right; padding: .3rem .6rem; border-bottom: 1px solid #e2d9ca }
th { font-weight: 600; vertical-align: bottom }
"""
