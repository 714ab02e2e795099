"""Export chunks of K/V to a tar file: `quire kv export FILE`.

The file reveals the prompts, as the chunks do; only its owner can read it. Each chunk is signed
with the file `secret` in the store's directory, so that the importing store can verify its origin.
"""

from __future__ import annotations

import argparse
import os

from quire.cli.kv_store import add_archive, add_place, archive_of, place_of, show
from quire.config.command_line.parser import Parser
from quire.errors import ConfigError
from quire.files import replacing
from quire.kvstore.tiers import disk_files
from quire.kvstore.tools.archive import export_chunks
from quire.kvstore.tools.signature import SECRET_NAME, make_secret
from quire.units import format_bytes


def configure(parser: Parser) -> None:
    """Declare the options."""
    add_archive(parser, "The tar file to write.")
    add_place(parser)
    parser.add_argument(
        "--folder", default="", help="Only folders with this name prefix (see quire kv ls)."
    )


def execute(args: argparse.Namespace) -> int:
    """Write the archive."""
    path = place_of(args)
    files = [file for file in disk_files.scan(path) if file.entry.folder.startswith(args.folder)]
    archive = archive_of(args)
    try:
        secret = make_secret(path) if path.is_dir() else b""
    except OSError as error:
        raise ConfigError(f"{path}/{SECRET_NAME}: {error.strerror or error}") from None
    with replacing(archive) as out:
        os.fchmod(out.fileno(), 0o600)
        moved = export_chunks(path, files, out, secret)
    record = {"num_chunks": moved.num_chunks, "num_bytes": moved.num_bytes}
    left_out = f"; {moved.num_broken} damaged ones skipped" * bool(moved.num_broken)
    text = f"{archive}: {moved.num_chunks:,} chunks, {format_bytes(moved.num_bytes)}{left_out}"
    show(args, {**record, "num_damaged": moved.num_broken}, text)
    return 0
