"""Measure a server under many settings: one is started for each, and loaded several times."""

from __future__ import annotations

import argparse

from quire.bench.sweep.serve import SweepServeArgs, run_sweep
from quire.config.command_line.options import add_options, read
from quire.config.command_line.parser import Parser
from quire.errors import ConfigError


def configure(parser: Parser) -> None:
    """Declares the options."""
    parser.add_config_option()
    add_options(parser, SweepServeArgs, title="sweep")


def execute(args: argparse.Namespace) -> int:
    """Measures; 1 if no run succeeded."""
    for name in ("serve_cmd", "bench_cmd"):
        if not hasattr(args, name):
            raise ConfigError(
                "give both commands: quire bench sweep serve --serve-cmd 'quire serve MODEL' "
                "--bench-cmd 'quire bench serve --num-prompts 100'"
            )
    wanted = read(SweepServeArgs, args)
    return 0 if run_sweep(wanted) or wanted.dry_run else 1
