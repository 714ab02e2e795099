"""Measure the latency of one batch of requests, in this process."""

from __future__ import annotations

import argparse

from quire.bench.offline import LatencyArgs, run_latency
from quire.config.command_line.engine_options import add_engine_options, engine_args
from quire.config.command_line.options import add_options, read
from quire.config.command_line.parser import Parser

_DEFAULTS = {"enable_prefix_caching": False}
"""The prompts repeat, so with the prefix cache the benchmark would measure cache hits."""


def configure(parser: Parser) -> None:
    """Declare the options."""
    add_options(parser, LatencyArgs, title="measurement")
    add_engine_options(parser, defaults=_DEFAULTS)


def execute(args: argparse.Namespace) -> int:
    """Run the benchmark."""
    run_latency(read(LatencyArgs, args), engine_args(args, defaults=_DEFAULTS))
    return 0
