"""Import chunks of K/V from a tar file made by `quire kv export`: `quire kv import FILE`.

Each chunk is checked against its name, checksum and signature. Without --trust, only chunks are
imported that this store, or a store with a copy of its file `secret`, exported: wrong K/V leads to
wrong answers.
"""

from __future__ import annotations

import argparse

from quire.cli.kv_store import add_archive, add_place, archive_of, place_of, show
from quire.config.command_line.parser import Parser
from quire.config.command_line.values import parse_size
from quire.errors import ConfigError
from quire.kvstore.tiers.base import TierError
from quire.kvstore.tiers.disk import DiskTier
from quire.kvstore.tools.archive import import_chunks
from quire.kvstore.tools.signature import secret_of
from quire.units import GiB, format_bytes

_NO_BOUND = 1 << 60
"""Engines that use the directory enforce their own bounds."""


def configure(parser: Parser) -> None:
    """Declare the options."""
    add_archive(parser, "The tar file to read.")
    add_place(parser)
    parser.add_argument(
        "--max-size", type=parse_size, default=20 * GiB, metavar="SIZE",
        help="Import at most this many bytes (default: 20 GiB).",
    )  # fmt: skip
    parser.add_argument(
        "--trust", action="store_true",
        help="Also import chunks that this store has not signed. The author of the archive can "
        "then change the model's answers.",
    )  # fmt: skip


def execute(args: argparse.Namespace) -> int:
    """Read the archive. Returns 1 if it contains damaged chunks."""
    path, archive = place_of(args, may_be_new=True), archive_of(args)
    try:
        with archive.open("rb") as source:
            secret = None if args.trust else secret_of(path)
            tier = DiskTier(path, _NO_BOUND)
            try:
                moved = import_chunks(
                    source, tier, args.max_size, secret=secret, trusts_all=args.trust
                )
            finally:
                tier.close()
    except OSError as error:
        raise ConfigError(f"{archive} cannot be read: {error.strerror or error}") from None
    except TierError as error:
        raise ConfigError(f"{path}: {error}") from None
    record = {"num_chunks": moved.num_chunks, "num_bytes": moved.num_bytes}
    left_out = f"; {moved.num_broken} damaged ones skipped" * bool(moved.num_broken)
    text = f"{path}: {moved.num_chunks:,} chunks, {format_bytes(moved.num_bytes)}{left_out}"
    show(args, {**record, "num_damaged": moved.num_broken}, text)
    return 1 if moved.num_broken else 0
