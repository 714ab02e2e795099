"""Draw the results of a sweep as curves."""

from __future__ import annotations

import argparse

from quire.bench.sweep.plot import SweepPlotArgs, draw_sweep
from quire.config.command_line.options import add_options, read
from quire.config.command_line.parser import Parser
from quire.errors import ConfigError


def configure(parser: Parser) -> None:
    """Declare the options."""
    parser.add_argument(
        "experiment", nargs="?", metavar="EXPERIMENT_DIR",
        help="Directory of the experiment: OUTPUT_DIR/NAME.",
    )  # fmt: skip
    add_options(parser, SweepPlotArgs, title="figures")


def execute(args: argparse.Namespace) -> int:
    """Draw the figures."""
    if args.experiment is None:
        raise ConfigError("name the experiment: quire bench sweep plot results/NAME")
    draw_sweep(args.experiment, read(SweepPlotArgs, args))
    return 0
