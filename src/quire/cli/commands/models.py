"""List the supported architectures, with well-known models of each."""

from __future__ import annotations

import argparse
import json

from quire.config.command_line.parser import Parser
from quire.models import ModelFamily, ModelRegistry


def configure(parser: Parser) -> None:
    """Declare the options."""
    parser.add_argument("--json", action="store_true", help="Print JSON for programs.")
    parser.add_argument("--markdown", action="store_true", help="Print the table for docs.")


def execute(args: argparse.Namespace) -> int:
    """Print one row per family."""
    rows = families()
    if args.json:
        found = {family.name: [family.models, list(names)] for family, names in rows}
        print(json.dumps(found, indent=2))
    elif args.markdown:
        print(markdown())
    else:
        for family, names in rows:
            print(f"{', '.join(names):<58} {family.models}")
    return 0


def markdown() -> str:
    """The table of docs/models.md."""
    lines = ["| models | `architectures` in config.json |", "|---|---|"]
    for family, names in families():
        lines.append(f"| {family.models} | {', '.join(f'`{name}`' for name in names)} |")
    return "\n".join(lines)


def families() -> list[tuple[ModelFamily, list[str]]]:
    """Every family with its architectures, sorted by the first architecture."""
    found: dict[str, tuple[ModelFamily, list[str]]] = {}
    for name in ModelRegistry.get_supported_archs():
        family = ModelRegistry.resolve([name])
        found.setdefault(family.name, (family, []))[1].append(name)
    return list(found.values())
