"""Measure how long a fresh process takes until its engine is ready, cold and warm."""

from __future__ import annotations

import argparse

from quire.bench.startup import StartupArgs, run_startup
from quire.config.command_line.engine_options import add_engine_options, engine_args
from quire.config.command_line.options import add_options, read
from quire.config.command_line.parser import Parser
from quire.env import turn_off_kv_store


def configure(parser: Parser) -> None:
    """Declares the options."""
    add_options(parser, StartupArgs, title="measurement")
    add_engine_options(parser)


def execute(args: argparse.Namespace) -> int:
    """Measures."""
    turn_off_kv_store()  # what is loaded would not be measured
    run_startup(read(StartupArgs, args), engine_args(args))
    return 0
