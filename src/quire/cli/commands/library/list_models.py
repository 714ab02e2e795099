"""List the models on this machine: the bundled one, and those in the hub's cache."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from quire import env
from quire.cli.library import ago, table
from quire.config.checkpoint.model_files import DEMO_MODEL
from quire.config.command_line.parser import Parser
from quire.config.places.aliases import read_aliases
from quire.config.places.library import LibraryModel, models_of
from quire.units import format_bytes


def configure(parser: Parser) -> None:
    """Declare the options."""
    parser.add_argument("--json", action="store_true", help="Print JSON for programs.")


def execute(args: argparse.Namespace) -> int:
    """Print a row for each model."""
    names: dict[str, list[str]] = {}
    for alias, model in read_aliases().items():
        names.setdefault(model, []).append(alias)
    found = models_of(env.hub_cache_dir())
    if args.json:
        rows = [
            {
                "name": one.name, "kind": one.kind, "num_bytes": one.num_bytes,
                "modified": one.modified, "commit": one.commit, "is_complete": one.is_complete,
                "aliases": names.get(one.name, []),
            }
            for one in found
        ]  # fmt: skip
        print(json.dumps(rows, indent=2))
        return 0
    lines: list[Sequence[str]] = [
        (
            one.name, one.kind, format_bytes(one.num_bytes),
            ago(one.modified) if one.is_complete else "incomplete",
            ", ".join(names.get(one.name, [])),
        )
        for one in found
    ]  # fmt: skip
    lines.append((DEMO_MODEL, "bundled", "", "", ", ".join(names.get(DEMO_MODEL, []))))
    print(table(("NAME", "KIND", "SIZE", "FETCHED", "ALIASES"), lines))
    others = {model: aliases for model, aliases in names.items() if not _is_listed(model, found)}
    for model, aliases in others.items():
        print(f"{', '.join(aliases)} -> {model}")
    return 0


def _is_listed(model: str, found: Sequence[LibraryModel]) -> bool:
    return model == DEMO_MODEL or any(one.name == model for one in found)
