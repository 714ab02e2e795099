"""Draw the Pareto-optimal settings of a sweep."""

from __future__ import annotations

import argparse

from quire.bench.sweep.plot import SweepParetoArgs, draw_pareto
from quire.config.command_line.options import add_options, read
from quire.config.command_line.parser import Parser
from quire.errors import ConfigError


def configure(parser: Parser) -> None:
    """Declare the options."""
    parser.add_argument(
        "experiment", nargs="?", metavar="EXPERIMENT_DIR",
        help="Directory of the experiment: OUTPUT_DIR/NAME.",
    )  # fmt: skip
    add_options(parser, SweepParetoArgs, title="figure")


def execute(args: argparse.Namespace) -> int:
    """Draw the figure."""
    if args.experiment is None:
        raise ConfigError("name the experiment: quire bench sweep plot_pareto results/NAME")
    draw_pareto(args.experiment, read(SweepParetoArgs, args))
    return 0
