"""`quire bench`: benchmarks, each a command."""

from __future__ import annotations

from quire.cli.app import Command

ABOUT = "Measures Quire with vLLM bench's definitions, options and JSON keys."

COMMANDS = (
    Command("latency", "bench.latency", "Latency of one batch, in this process"),
    Command("throughput", "bench.throughput", "Tokens per second, in this process"),
    Command("serve", "bench.serve", "Load on a running server: TTFT, TPOT, ITL, E2EL"),
    Command(
        "sweep",
        "bench.sweep",
        "Load on a server with many settings, and charts of the results",
    ),
    Command("startup", "bench.startup", "Seconds until a new process is ready"),
)
