"""`quire bench sweep`: benchmarks under many settings."""

from __future__ import annotations

from quire.cli.app import Command

ABOUT = "Measures under many settings, one after the other, as vLLM's sweep does."

COMMANDS = (
    Command("serve", "bench.sweep.serve", "A load on a server that is started for each setting"),
    Command("serve_workload", "bench.sweep.serve_workload", "A load that grows, for each setting"),
    Command("startup", "bench.sweep.startup", "How long a start takes, for each setting"),
    Command("plot", "bench.sweep.plot", "Curves of a sweep's results, as SVG"),
    Command("plot_pareto", "bench.sweep.plot_pareto", "The settings that no other beats, as SVG"),
)
