"""Delete models from the hub's cache: `quire rm org/name`, or `org/name:Q4_K_M` for one file."""

from __future__ import annotations

import argparse

from quire import env
from quire.cli.library import cached_model, named
from quire.config.command_line.parser import Parser
from quire.config.places.library import remove_model
from quire.units import format_bytes


def configure(parser: Parser) -> None:
    """Declare the options."""
    parser.add_argument("models", nargs="*", metavar="MODEL", help="As `quire list` names them.")


def execute(args: argparse.Namespace) -> int:
    """Delete each model. A model that is a path is not touched."""
    for model in [
        cached_model(name) for name in named(args.models)
    ]:  # all exist, or none is deleted
        freed = remove_model(model, env.hub_cache_dir())
        print(f"{model.name}: deleted, {format_bytes(freed)} are free")
    return 0
