"""Measure the start under many settings, one after the other."""

from __future__ import annotations

import argparse

from quire.bench.sweep.startup import SweepStartupArgs, run_startup_sweep
from quire.config.command_line.options import add_options, read
from quire.config.command_line.parser import Parser


def configure(parser: Parser) -> None:
    """Declare the options."""
    parser.add_config_option()
    add_options(parser, SweepStartupArgs, title="sweep")


def execute(args: argparse.Namespace) -> int:
    """Run the sweep."""
    run_startup_sweep(read(SweepStartupArgs, args))
    return 0
