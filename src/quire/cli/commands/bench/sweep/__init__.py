"""`quire bench sweep`: benchmarks under many settings."""

from __future__ import annotations

from quire.cli.app import Command

ABOUT = "Runs benchmarks under many settings, one after the other, as vLLM's sweep does."

COMMANDS = (
    Command("serve", "bench.sweep.serve", "Load on a server that is started for each setting"),
    Command("serve_workload", "bench.sweep.serve_workload", "Increasing load, for each setting"),
    Command("startup", "bench.sweep.startup", "Duration of a start, for each setting"),
    Command("plot", "bench.sweep.plot", "Curves of a sweep's results, as SVG"),
    Command("plot_pareto", "bench.sweep.plot_pareto", "The Pareto-optimal settings, as SVG"),
)
