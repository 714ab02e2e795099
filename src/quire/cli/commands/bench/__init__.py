"""`quire bench`: benchmarks, each a command."""

from __future__ import annotations

from quire.cli.app import Command

ABOUT = "Measures Quire with vLLM bench's definitions, options and JSON keys."

COMMANDS = (
    Command("latency", "bench.latency", "Seconds of one batch, in this process"),
    Command("throughput", "bench.throughput", "Tokens per second, in this process"),
    Command("serve", "bench.serve", "A load on a running server: TTFT, TPOT, ITL, E2EL"),
    Command(
        "sweep",
        "bench.sweep",
        "A load on a server, under many settings, and its results as charts",
    ),
    Command("startup", "bench.startup", "Seconds until a fresh process is ready"),
)
