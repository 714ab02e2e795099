"""Read every file of the KV store and compare it with its checksum.

An engine checks each file that it reads in the same way and drops damaged files. The exit code is 1
if a file is damaged.
"""

from __future__ import annotations

import argparse
import sys

from quire.cli.kv_store import add_place, place_of, show
from quire.config.command_line.parser import Parser
from quire.kvstore.tiers import disk_files
from quire.kvstore.tools.directory import check, remove
from quire.units import format_bytes


def configure(parser: Parser) -> None:
    """Declare the options."""
    add_place(parser)
    parser.add_argument("--delete", action="store_true", help="Remove damaged files.")


def execute(args: argparse.Namespace) -> int:
    """Print the damaged files."""
    from tqdm import tqdm  # type: ignore[import-untyped]

    path = place_of(args)
    files = list(disk_files.scan(path))
    total = sum(file.num_bytes for file in files)
    broken = []
    is_quiet = args.json or not sys.stderr.isatty()
    with tqdm(total=total, unit="B", unit_scale=True, disable=is_quiet) as bar:
        for file in files:
            if (found := check(path, file)) is not None:
                broken.append(found)
            bar.update(file.num_bytes)
    if args.delete and broken:
        remove(path, [one.entry for one in broken])
    lines = [f"{one.entry.folder}/{one.entry.name}: {one.kind}: {one.message}" for one in broken]
    done = " and removed" if args.delete and broken else ""
    lines.append(f"{len(files):,} chunks, {format_bytes(total)}: {len(broken)} damaged{done}")
    record = {
        "num_chunks": len(files),
        "num_bytes": total,
        "damaged": [
            {"folder": one.entry.folder, "name": one.entry.name, "kind": one.kind} for one in broken
        ],
        "deleted": bool(args.delete),
    }
    show(args, record, "\n".join(lines))
    return 1 if broken else 0
