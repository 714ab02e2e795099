"""Measure the throughput of many concurrent requests, in this process."""

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
    """Declare the options."""
    add_options(parser, ThroughputArgs, title="measurement")
    add_options(parser, DatasetArgs, title="requests")
    add_engine_options(parser, skip={"seed"})
    parser.shorten({"requests"}, DATASET_OPTIONS)


def execute(args: argparse.Namespace) -> int:
    """Run the benchmark."""
    turn_off_kv_store()  # loading stored K/V would distort the measurement
    run_throughput(read(ThroughputArgs, args), read(DatasetArgs, args), engine_args(args))
    return 0
