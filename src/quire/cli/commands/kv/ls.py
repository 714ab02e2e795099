"""List the K/V that the KV store keeps in files: one line per model and tenant, last used first.

A folder's name is derived from the model's weights, the arithmetic and the tenant; the files do not
name the model.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict

from quire.cli.kv_store import add_place, age, place_of, show
from quire.config.command_line.parser import Parser
from quire.kvstore.tools.directory import folders
from quire.units import format_bytes


def configure(parser: Parser) -> None:
    """Declare the options."""
    add_place(parser)


def execute(args: argparse.Namespace) -> int:
    """Print the folders."""
    found = folders(place_of(args))
    lines = [f"{'folder':<32}  {'chunks':>8}  {'size':>10}  {'last used':>10}  {'first used':>10}"]
    lines += [
        f"{folder.name}  {folder.num_chunks:>8,}  {format_bytes(folder.num_bytes):>10}  "
        f"{age(folder.last_used_ns):>10}  {age(folder.first_used_ns):>10}"
        for folder in found
    ]
    show(args, [asdict(folder) for folder in found], "\n".join(lines))
    return 0
