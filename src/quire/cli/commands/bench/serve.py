"""Measure a running server: time to first token, between tokens, end to end, and throughput."""

from __future__ import annotations

import argparse

from quire.bench.datasets import DatasetArgs
from quire.bench.load import TrafficArgs
from quire.bench.serve import ServeBenchArgs, run
from quire.config.command_line.groups import DATASET_OPTIONS
from quire.config.command_line.options import add_options, read
from quire.config.command_line.parser import Parser

_COMMON = DATASET_OPTIONS | {
    "backend", "base_url", "model", "request_rate", "max_concurrency", "save_result",
}  # fmt: skip
"""Options shown in the short help."""


def configure(parser: Parser) -> None:
    """Declare the options."""
    parser.add_config_option()
    add_options(parser, ServeBenchArgs, title="server and results")
    add_options(parser, DatasetArgs, title="requests")
    add_options(parser, TrafficArgs, title="traffic")
    parser.shorten({"server and results", "requests", "traffic"}, _COMMON)


def execute(args: argparse.Namespace) -> int:
    """Run the benchmark. Returns 1 if no request succeeded."""
    result = run(read(ServeBenchArgs, args), read(DatasetArgs, args), read(TrafficArgs, args))
    return 0 if result["completed"] else 1
