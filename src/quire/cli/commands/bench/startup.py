"""Measure the time until the engine of a new process is ready, cold and warm."""

from __future__ import annotations

import argparse

from quire.bench.startup import StartupArgs, run_startup
from quire.config.command_line.engine_options import add_engine_options, engine_args
from quire.config.command_line.options import add_options, read
from quire.config.command_line.parser import Parser
from quire.env import turn_off_kv_store


def configure(parser: Parser) -> None:
    """Declare the options."""
    add_options(parser, StartupArgs, title="measurement")
    add_engine_options(parser)


def execute(args: argparse.Namespace) -> int:
    """Run the benchmark."""
    turn_off_kv_store()  # loading stored K/V would distort the measurement
    run_startup(read(StartupArgs, args), engine_args(args))
    return 0
