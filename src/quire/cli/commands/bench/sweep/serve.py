"""Benchmark a server under many settings: one server is started per setting and loaded
repeatedly."""

from __future__ import annotations

import argparse

from quire.bench.sweep.serve import SweepServeArgs, run_sweep
from quire.config.command_line.options import add_options, read
from quire.config.command_line.parser import Parser
from quire.errors import ConfigError


def configure(parser: Parser) -> None:
    """Declare the options."""
    parser.add_config_option()
    add_options(parser, SweepServeArgs, title="sweep")


def execute(args: argparse.Namespace) -> int:
    """Run the sweep. Returns 1 if no run succeeded."""
    check_commands(args, "serve")
    wanted = read(SweepServeArgs, args)
    return 0 if run_sweep(wanted) or wanted.dry_run else 1


def check_commands(args: argparse.Namespace, name: str) -> None:
    """Raises ConfigError unless both commands were given for the sweep of this name."""
    for option in ("serve_cmd", "bench_cmd"):
        if not hasattr(args, option):
            raise ConfigError(
                f"give both commands: quire bench sweep {name} --serve-cmd 'quire serve MODEL' "
                "--bench-cmd 'quire bench serve --num-prompts 100'"
            )
