"""Measure the throughput of many requests at once, in this process."""

from __future__ import annotations

import argparse

from quire.bench.datasets import DatasetArgs
from quire.bench.offline import ThroughputArgs, run_throughput
from quire.config.command_line.engine_options import add_engine_options, engine_args
from quire.config.command_line.groups import DATASET_OPTIONS
from quire.config.command_line.options import add_options, read
from quire.config.command_line.parser import Parser
from quire.env import turn_off_kv_store


def configure(parser: Parser) -> None:
    """Declares the options."""
    add_options(parser, ThroughputArgs, title="measurement")
    add_options(parser, DatasetArgs, title="requests")
    add_engine_options(parser, skip={"seed"})
    parser.shorten({"requests"}, DATASET_OPTIONS)


def execute(args: argparse.Namespace) -> int:
    """Measures."""
    turn_off_kv_store()  # what is loaded would not be measured
    run_throughput(read(ThroughputArgs, args), read(DatasetArgs, args), engine_args(args))
    return 0
