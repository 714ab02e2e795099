"""Print the code that lets a shell complete the commands: `eval "$(quire completion bash)"`.

For fish: quire completion fish | source. Put the line into the shell's start file.
"""

from __future__ import annotations

import argparse

from quire.cli.completion import SHELLS, script
from quire.config.command_line.parser import Parser
from quire.errors import ConfigError


def configure(parser: Parser) -> None:
    """Declare the options."""
    parser.add_argument("shell", nargs="?", metavar="SHELL", help="bash, zsh or fish.")


def execute(args: argparse.Namespace) -> int:
    """Print the code."""
    if args.shell not in SHELLS:
        raise ConfigError(f"name a shell, one of {', '.join(SHELLS)}: quire completion bash")
    print(script(args.shell), end="")
    return 0
