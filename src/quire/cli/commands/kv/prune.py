"""Remove K/V from the KV store's files: K/V not used for some time, the least recently used K/V
above a size, the K/V of one model and tenant, or all of it."""

from __future__ import annotations

import argparse
import re
import time

from quire.cli.kv_store import add_place, place_of, show
from quire.config.command_line.parser import Parser
from quire.config.command_line.values import parse_duration, parse_size
from quire.errors import ConfigError, quoted
from quire.kvstore.tiers import disk_files
from quire.kvstore.tools.directory import chosen, remove
from quire.units import format_bytes

_FOLDER = re.compile(r"[0-9a-f]{1,32}")


def configure(parser: Parser) -> None:
    """Declare the options."""
    add_place(parser)
    parser.add_argument(
        "--max-size", type=parse_size, metavar="SIZE", help="Keep at most this size, e.g. 5GiB."
    )
    parser.add_argument(
        "--older-than",
        type=parse_duration,
        metavar="TIME",
        help="Remove K/V unused for this long, e.g. 7d.",
    )
    parser.add_argument(
        "--folder", default="", help="Only folders with this name prefix (see quire kv ls)."
    )
    parser.add_argument("--all", action="store_true", help="Remove all K/V.")
    parser.add_argument("--dry-run", action="store_true", help="Report, but remove nothing.")


def execute(args: argparse.Namespace) -> int:
    """Remove files and print a summary. Raises ConfigError unless an option selects files."""
    if args.folder and not _FOLDER.fullmatch(args.folder):
        raise ConfigError(f"--folder {quoted(args.folder)} must be a prefix of 32 hex digits")
    limits = (args.max_size, args.older_than)
    if args.all and (args.folder or limits != (None, None)):
        raise ConfigError("--all removes everything: remove the other options, or --all")
    if not (args.all or args.folder) and limits == (None, None):
        raise ConfigError("select chunks: --older-than 7d, --max-size 5GiB, --folder or --all")
    path = place_of(args)
    files = list(disk_files.scan(path))
    since_ns = None if args.older_than is None else time.time_ns() - int(args.older_than * 1e9)
    entries = set(
        chosen(files, folder=args.folder, unused_since_ns=since_ns, max_bytes=args.max_size)
    )
    num_bytes = sum(file.num_bytes for file in files if file.entry in entries)
    if entries and not args.dry_run:
        num_bytes = remove(path, entries)
    left = len(files) - len(entries)
    record = {
        "num_chunks": len(entries), "num_bytes": num_bytes, "num_left": left,
        "dry_run": bool(args.dry_run),
    }  # fmt: skip
    done = "would be removed" if args.dry_run else "removed"
    text = f"{len(entries):,} chunks, {format_bytes(num_bytes)}, {done}; {left:,} are left"
    show(args, record, text)
    return 0
