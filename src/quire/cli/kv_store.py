"""Shared options of the commands for a directory of chunks: the directory and the output format."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from quire import env
from quire.config.command_line.parser import Parser
from quire.errors import ConfigError

_DAY_S = 86_400


def add_place(parser: Parser) -> None:
    """Declare the options for the directory and the output format."""
    parser.add_argument(
        "--path", type=Path, help="The directory of chunk files (default: quire/kv in ~/.cache)."
    )
    parser.add_argument("--json", action="store_true", help="Print JSON.")


def add_archive(parser: Parser, what: str) -> None:
    """Declare the positional argument for a tar file."""
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help=what)


def archive_of(args: argparse.Namespace) -> Path:
    """The path of the tar file. Raises ConfigError if it is missing."""
    if args.file is None:
        raise ConfigError("name the tar file: quire kv export FILE, quire kv import FILE")
    return env.expanded(str(args.file))


def place_of(args: argparse.Namespace, *, may_be_new: bool = False) -> Path:
    """The directory. Raises ConfigError if a given directory does not exist, unless
    `may_be_new`."""
    if args.path is None:
        try:
            return env.cache_dir() / "kv"
        except RuntimeError:
            raise ConfigError("this user has no home directory; give --path") from None
    path = env.expanded(str(args.path))
    if not path.is_dir() and (path.exists() or not may_be_new):
        raise ConfigError(f"--path {path} must be an existing directory")
    return path


def show(args: argparse.Namespace, record: Any, text: str) -> None:
    """Print the record as JSON, or the text."""
    print(json.dumps(record, indent=2) if args.json else text)


def age(used_ns: int) -> str:
    """Format the age of a time: `3 min`, `2.5 h`, `8 days`."""
    seconds = max(0.0, time.time() - used_ns / 1e9)
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    if seconds < 2 * _DAY_S:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / _DAY_S:.0f} days"
