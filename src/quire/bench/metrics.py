"""Statistics of a served load: TTFT, TPOT, ITL, E2EL, throughput, goodput.

Definitions and names are vLLM bench's. TPOT of a request is (latency - TTFT) / (output
tokens - 1); ITL are the gaps between single events; E2EL ends with the last token.
Pure functions of the results.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from quire.bench.load import RequestResult
from quire.errors import ConfigError
from quire.files import replacing
from quire.log.writer import say

METRIC_TITLES = {
    "ttft": ("TTFT", "Time to First Token"),
    "tpot": ("TPOT", "Time per Output Token (excl. 1st token)"),
    "itl": ("ITL", "Inter-token Latency"),
    "e2el": ("E2EL", "End-to-end Latency"),
    "client_queue_time": ("Client Queue Time", "Client-side Queueing"),
}
"""Short name and heading of each metric that can be asked for."""

_GOODPUT_METRICS = ("ttft", "tpot", "e2el")


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples in seconds, from successful requests, that the statistics are computed from."""

    ttft: list[float]
    tpot: list[float]
    itl: list[float]
    e2el: list[float]
    client_queue_time: list[float]

    @classmethod
    def of(cls, results: Sequence[RequestResult]) -> Samples:
        """Collect the samples."""
        good = [result for result in results if result.is_success]
        return cls(
            ttft=[r.ttft for r in good],
            tpot=[tpot(r) for r in good if r.output_tokens > 1],
            itl=[gap for r in good for gap in r.itl],
            e2el=[r.latency for r in good],
            client_queue_time=[r.queue_time for r in good],
        )


def tpot(result: RequestResult) -> float:
    """Seconds per output token after the first; 0 for an answer of one token."""
    if result.output_tokens <= 1:
        return 0.0
    return (result.latency - result.ttft) / (result.output_tokens - 1)


def parse_goodput(pairs: Sequence[str]) -> dict[str, float]:
    """`["ttft:200", "tpot:50"]`, in milliseconds, as bounds in seconds. Raises ConfigError."""
    bounds = {}
    for pair in pairs:
        name, _, value = pair.partition(":")
        try:
            bound = float(value)
        except ValueError:
            bound = math.nan
        if name not in _GOODPUT_METRICS or not bound >= 0:
            names = ", ".join(_GOODPUT_METRICS)
            raise ConfigError(f"--goodput {pair!r}: write NAME:MILLISECONDS, NAME one of {names}")
        bounds[name] = bound / 1000
    return bounds


def count_good(results: Sequence[RequestResult], bounds: Mapping[str, float]) -> int:
    """Count the requests within every bound."""
    return sum(
        result.is_success
        and result.ttft <= bounds.get("ttft", math.inf)
        and tpot(result) <= bounds.get("tpot", math.inf)
        and result.latency <= bounds.get("e2el", math.inf)
        for result in results
    )


def summarise(
    results: Sequence[RequestResult],
    duration_s: float,
    metrics: Sequence[str],
    percentiles: Sequence[float],
    goodput: Mapping[str, float],
) -> dict[str, Any]:
    """Return the results by vLLM bench's JSON keys."""
    good = [result for result in results if result.is_success]
    total_input = sum(result.prompt_len for result in good)
    total_output = sum(result.output_tokens for result in good)
    peak_tokens, peak_requests = peaks(good)
    summary: dict[str, Any] = {
        "duration": duration_s,
        "completed": len(good),
        "failed": len(results) - len(good),
        "total_input_tokens": total_input,
        "total_output_tokens": total_output,
        "request_throughput": len(good) / duration_s,
        "request_goodput": count_good(results, goodput) / duration_s if goodput else None,
        "output_throughput": total_output / duration_s,
        "total_token_throughput": (total_input + total_output) / duration_s,
        "input_lens": [result.prompt_len for result in results],
        "output_lens": [result.output_tokens for result in results],
        "ttfts": [result.ttft for result in results],
        "itls": [result.itl for result in results],
        "latencies": [result.latency for result in results],
        "start_times": [result.start_time for result in results],
        "queue_times": [result.queue_time for result in results],
        "generated_texts": [result.text for result in results],
        "errors": [result.error for result in results],
        "max_output_tokens_per_s": peak_tokens,
        "max_concurrent_requests": peak_requests,
        "cached_input_tokens": sum(result.cached_tokens for result in good),
    }
    samples = Samples.of(results)
    for name in metrics:
        summary |= spread(name, getattr(samples, name), percentiles)
    return summary


def spread(name: str, seconds: Sequence[float], percentiles: Sequence[float]) -> dict[str, float]:
    """`mean_ttft_ms`, `median_ttft_ms`, `std_ttft_ms`, `p99_ttft_ms`; 0 without samples."""
    values = 1000 * np.array(seconds or [0.0])
    found = {
        f"mean_{name}_ms": float(np.mean(values)),
        f"median_{name}_ms": float(np.median(values)),
        f"std_{name}_ms": float(np.std(values)),
    }
    for p in percentiles:
        word = str(int(p)) if int(p) == p else str(p)
        found[f"p{word}_{name}_ms"] = float(np.percentile(values, p))
    return found


def peaks(results: Sequence[RequestResult]) -> tuple[float, int]:
    """Most tokens per second that arrived in one part of the run, and most requests that were in
    flight in any one second.

    The parts are equally long, at least a second, or the whole of a shorter run: no peak is below
    the mean. The tokens of a request count evenly over its events.
    """
    if not results:
        return 0.0, 0
    begin = min(result.start_time for result in results)
    span = max(result.start_time + result.latency for result in results) - begin
    num_parts = max(1, int(span))
    in_flight = np.zeros(int(span) + 1)
    times: list[float] = []
    weights: list[float] = []
    for result in results:
        first, num_events = result.start_time - begin, 1 + len(result.itl)
        times.extend(first + result.ttft + np.cumsum([0.0, *result.itl]))
        weights += [result.output_tokens / num_events] * num_events
        in_flight[int(first) : int(first + result.latency) + 1] += 1
    tokens, _ = np.histogram(np.minimum(times, span), num_parts, (0, span), weights=weights)
    return float(tokens.max()) * num_parts / span, int(in_flight.max())


DETAILED_KEYS = (
    "input_lens", "output_lens", "start_times", "ttfts", "itls", "latencies", "queue_times",
    "generated_texts", "errors",
)  # fmt: skip
"""One entry per request; saved only when asked for."""

_MAX_SHOWN_ERRORS = 10


def print_served(
    summary: Mapping[str, Any],
    metrics: Sequence[str],
    request_rate: float,
    max_concurrency: int | None,
) -> None:
    """The table of `quire bench serve`, in the shape of vLLM's."""
    rows: list[tuple[str, float | None]] = [
        ("Successful requests:", summary["completed"]),
        ("Failed requests:", summary["failed"]),
        ("Maximum request concurrency:", max_concurrency),
        ("Request rate configured (RPS):", None if math.isinf(request_rate) else request_rate),
        ("Benchmark duration (s):", summary["duration"]),
        ("Total input tokens:", summary["total_input_tokens"]),
        ("Total input tokens from cache:", summary["cached_input_tokens"]),
        ("Total generated tokens:", summary["total_output_tokens"]),
        ("Request throughput (req/s):", summary["request_throughput"]),
        ("Request goodput (req/s):", summary["request_goodput"]),
        ("Output token throughput (tok/s):", summary["output_throughput"]),
        ("Peak output token throughput (tok/s):", summary["max_output_tokens_per_s"]),
        ("Peak concurrent requests:", summary["max_concurrent_requests"]),
        ("Total token throughput (tok/s):", summary["total_token_throughput"]),
    ]
    say(" Serving Benchmark Result ".center(50, "="))
    for name, value in rows:
        if value is not None:
            say(_row(name, value))
    for metric in metrics:
        short, title = METRIC_TITLES[metric]
        say(title.center(50, "-"))
        for key, value in summary.items():
            if key.endswith(f"_{metric}_ms"):
                statistic = key.removesuffix(f"_{metric}_ms").capitalize()
                say(_row(f"{statistic} {short} (ms):", float(value)))
    say("=" * 50)
    errors = [error for error in summary["errors"] if error]
    for error in errors[:_MAX_SHOWN_ERRORS]:
        say(f"failed: {error[:300]}")
    if len(errors) > _MAX_SHOWN_ERRORS:
        say(f"... and {len(errors) - _MAX_SHOWN_ERRORS} more")


def _row(name: str, value: float) -> str:
    shown = f"{value:<10}" if isinstance(value, int) else f"{value:<10.2f}"
    return f"{name:<40} {shown}".rstrip()


def parse_pairs(pairs: Sequence[str], option: str) -> dict[str, str]:
    """`["a=1", "b=2"]` as a dict. Raises ConfigError that names the option."""
    found = {}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not sign:
            raise ConfigError(f"{option} {pair!r}: write KEY=VALUE")
        found[name.strip()] = value.strip()
    return found


def save_json(path: Path, result: Mapping[str, Any], *, append: bool = False) -> None:
    """Write one JSON object, or append it as a line. Raises ConfigError."""
    before = _held(path) if append else b""
    text = json.dumps(result)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{path.parent} cannot be made: {error.strerror}") from None
    with replacing(path) as file:
        file.write(before + b"\n" * bool(before) + text.encode())
    say(f"results: {path}")


def _held(path: Path) -> bytes:
    """Return a file's contents; empty if it is missing, a pipe or a device."""
    try:
        return path.read_bytes() if path.is_file() else b""
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
