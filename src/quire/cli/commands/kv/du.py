"""Show the total size of the K/V that the KV store keeps in files."""

from __future__ import annotations

import argparse

from quire.cli.kv_store import add_place, place_of, show
from quire.config.command_line.parser import Parser
from quire.kvstore.tools.directory import folders
from quire.units import format_bytes


def configure(parser: Parser) -> None:
    """Declare the options."""
    add_place(parser)


def execute(args: argparse.Namespace) -> int:
    """Print one line."""
    path = place_of(args)
    found = folders(path)
    num_chunks = sum(folder.num_chunks for folder in found)
    num_bytes = sum(folder.num_bytes for folder in found)
    record = {
        "path": str(path), "num_folders": len(found), "num_chunks": num_chunks,
        "num_bytes": num_bytes,
    }  # fmt: skip
    text = f"{format_bytes(num_bytes)} in {num_chunks:,} chunks of {len(found)} models and tenants"
    show(args, record, f"{text}, in {path}")
    return 0
