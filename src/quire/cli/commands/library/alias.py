"""Give a model a short name: `quire alias small org/name:Q4_K_M`. Without words, list the names."""

from __future__ import annotations

import argparse

from quire.config.command_line.parser import Parser
from quire.config.places.aliases import read_aliases, remove_alias, set_alias
from quire.errors import ConfigError


def configure(parser: Parser) -> None:
    """Declare the options."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="The short name.")
    parser.add_argument("model", nargs="?", metavar="MODEL", help="A hub id, a path, or an alias.")
    parser.add_argument("--delete", action="store_true", help="Delete the name; the model stays.")


def execute(args: argparse.Namespace) -> int:
    """Set, delete or list names."""
    if args.delete:
        if args.name is None or args.model is not None:
            raise ConfigError("--delete needs one name, and no model")
        remove_alias(args.name)
    elif args.model is not None:
        set_alias(args.name, args.model)
    elif args.name is not None:
        raise ConfigError(f"{args.name!r} needs a model: quire alias {args.name} MODEL")
    else:
        for name, model in sorted(read_aliases().items()):
            print(f"{name} -> {model}")
    return 0
