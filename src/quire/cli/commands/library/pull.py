"""Fetch models from the hub: `quire pull org/name`, or `org/name:Q4_K_M` for a GGUF file.

An interrupted download goes on where it ended. What was fetched is compared with the hub's
checksums. HF_ENDPOINT names a mirror, HF_TOKEN a token for private models.
"""

from __future__ import annotations

import argparse

from quire.cli.library import PullLines, named, place_of, pull_model
from quire.config.command_line.parser import Parser
from quire.errors import QuireError
from quire.units import format_bytes


def configure(parser: Parser) -> None:
    """Declare the options."""
    parser.add_argument(
        "models", nargs="*", metavar="MODEL", help="Hub ids, with or without hf.co/."
    )
    parser.add_argument("--revision", help="A branch, tag or commit (default: main).")
    parser.add_argument(
        "--json", action="store_true", help="Print the progress as lines of JSON in Ollama's form."
    )
    parser.add_argument(
        "--verify", action="store_true", help="Compare the checksums of files that are here, too."
    )


def execute(args: argparse.Namespace) -> int:
    """Fetch each model; print where it is."""
    for name in named(args.models):
        if args.json:
            if not _pull_in_lines(name, args):
                return 1
            continue
        pulled = pull_model(name, revision=args.revision, verifies_all=args.verify)
        model = pulled.model
        print(
            f"{model.name}: {format_bytes(model.num_bytes)} in {place_of(model)} "
            f"(commit {model.commit[:7]}, {pulled.num_verified} checksums compared)"
        )
    return 0


def _pull_in_lines(name: str, args: argparse.Namespace) -> bool:
    """Pull a model; print the progress, and an error, as lines. Return whether it is here."""
    lines = PullLines(name)
    try:
        pull_model(name, revision=args.revision, verifies_all=args.verify, lines=lines)
    except QuireError as error:
        lines.write(error=str(error))
        return False
    lines.write(status="success")
    return True
