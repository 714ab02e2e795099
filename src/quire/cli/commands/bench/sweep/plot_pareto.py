"""Draw which settings of a sweep no other one beats."""

from __future__ import annotations

import argparse

from quire.bench.sweep.pareto import SweepParetoArgs, draw_pareto
from quire.config.command_line.options import add_options, read
from quire.config.command_line.parser import Parser
from quire.errors import ConfigError


def configure(parser: Parser) -> None:
    """Declares the options."""
    parser.add_argument(
        "experiment", nargs="?", metavar="EXPERIMENT_DIR",
        help="Directory of the experiment: OUTPUT_DIR/NAME.",
    )  # fmt: skip
    add_options(parser, SweepParetoArgs, title="figure")


def execute(args: argparse.Namespace) -> int:
    """Draws."""
    if args.experiment is None:
        raise ConfigError("name the experiment: quire bench sweep plot_pareto results/NAME")
    draw_pareto(args.experiment, read(SweepParetoArgs, args))
    return 0
