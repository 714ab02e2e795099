"""Benchmark a server under increasing load: latency as a function of throughput."""

from __future__ import annotations

import argparse

from quire.bench.sweep.workload import SweepWorkloadArgs, run_workload_sweep
from quire.cli.commands.bench.sweep.serve import check_commands
from quire.config.command_line.options import add_options, read
from quire.config.command_line.parser import Parser


def configure(parser: Parser) -> None:
    """Declare the options."""
    parser.add_config_option()
    add_options(parser, SweepWorkloadArgs, title="sweep")


def execute(args: argparse.Namespace) -> int:
    """Run the sweep. Returns 1 if no run succeeded."""
    check_commands(args, "serve_workload")
    wanted = read(SweepWorkloadArgs, args)
    return 0 if run_workload_sweep(wanted) or wanted.dry_run else 1
