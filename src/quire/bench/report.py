"""Output of results: tables on the terminal, JSON files with vLLM's keys."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from quire.bench.metrics import METRIC_TITLES
from quire.errors import ConfigError
from quire.files import replacing

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
    print(" Serving Benchmark Result ".center(50, "="))
    for name, value in rows:
        if value is not None:
            print(_row(name, value))
    for metric in metrics:
        short, title = METRIC_TITLES[metric]
        print(title.center(50, "-"))
        for key, value in summary.items():
            if key.endswith(f"_{metric}_ms"):
                statistic = key.removesuffix(f"_{metric}_ms").capitalize()
                print(_row(f"{statistic} {short} (ms):", float(value)))
    print("=" * 50)
    errors = [error for error in summary["errors"] if error]
    for error in errors[:_MAX_SHOWN_ERRORS]:
        print(f"failed: {error[:300]}")
    if len(errors) > _MAX_SHOWN_ERRORS:
        print(f"... and {len(errors) - _MAX_SHOWN_ERRORS} more")


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
    print(f"results: {path}")


def _held(path: Path) -> bytes:
    """Return a file's contents; empty if it is missing, a pipe or a device."""
    try:
        return path.read_bytes() if path.is_file() else b""
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
