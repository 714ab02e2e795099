"""Remove K/V from the KV store's files: what nobody has used for some time, the least recently
used above a size, a model's or a tenant's, or all."""

from __future__ import annotations

import argparse
import re
import time

from quire.cli.kv_store.place import add_place, place_of, show
from quire.config.command_line.parser import Parser
from quire.config.command_line.values import parse_duration, parse_size
from quire.errors import ConfigError, quoted
from quire.kvstore.tiers import disk_files
from quire.kvstore.tools.directory import chosen, remove
from quire.units import format_bytes

_FOLDER = re.compile(r"[0-9a-f]{1,32}")


def configure(parser: Parser) -> None:
    """Declares the options."""
    add_place(parser)
    parser.add_argument(
        "--max-size", type=parse_size, metavar="SIZE", help="Keep at most so much, as 5GiB."
    )
    parser.add_argument(
        "--older-than", type=parse_duration, metavar="TIME", help="Not used for so long, as 7d."
    )
    parser.add_argument(
        "--folder", default="", help="Only folders whose names begin so (see quire kv ls)."
    )
    parser.add_argument("--all", action="store_true", help="Everything.")
    parser.add_argument("--dry-run", action="store_true", help="Only tell.")


def execute(args: argparse.Namespace) -> int:
    """Removes, and tells how much. Raises ConfigError where nothing says what to remove."""
    if args.folder and not _FOLDER.fullmatch(args.folder):
        raise ConfigError(f"--folder {quoted(args.folder)} is no beginning of 32 hex digits")
    limits = (args.max_size, args.older_than)
    if args.all and (args.folder or limits != (None, None)):
        raise ConfigError("--all removes everything; leave the other options out, or --all")
    if not (args.all or args.folder) and limits == (None, None):
        raise ConfigError("say what to remove: --older-than 7d, --max-size 5GiB, --folder or --all")
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
