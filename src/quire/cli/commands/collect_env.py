"""Print the facts about this machine and installation that a bug report needs."""

from __future__ import annotations

import argparse
import json

from quire.cli.environment_report import collect
from quire.cli.terminal import quiet_log
from quire.config.command_line.parser import Parser


def configure(parser: Parser) -> None:
    """Declare the options."""
    parser.add_argument("--json", action="store_true", help="Print JSON for programs.")


def execute(args: argparse.Namespace) -> int:
    """Print the facts."""
    quiet_log()
    facts = collect()
    if args.json:
        print(json.dumps(facts, indent=2))
        return 0
    for topic, rows in facts.items():
        print(topic)
        for name, value in rows.items():
            print(f"  {name:<24} {value}")
        print()
    return 0
