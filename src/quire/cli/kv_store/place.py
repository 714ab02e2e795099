"""What the commands about a directory of chunks have in common: which one, and how it is told."""

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
    """Declares which directory, and how it is told."""
    parser.add_argument(
        "--path", type=Path, help="The directory of chunk files (default: quire/kv in ~/.cache)."
    )
    parser.add_argument("--json", action="store_true", help="Print JSON.")


def add_archive(parser: Parser, what: str) -> None:
    """Declares the word for a tar file."""
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help=what)


def archive_of(args: argparse.Namespace) -> Path:
    """Raises ConfigError where the word is missing."""
    if args.file is None:
        raise ConfigError("name the tar file: quire kv export FILE, quire kv import FILE")
    return env.expanded(str(args.file))


def place_of(args: argparse.Namespace, *, may_be_new: bool = False) -> Path:
    """The directory. Raises ConfigError for one that was named and does not exist, unless it
    `may_be_new`."""
    if args.path is None:
        try:
            return env.cache_dir() / "kv"
        except RuntimeError:
            raise ConfigError("this user has no home directory; give --path") from None
    path = env.expanded(str(args.path))
    if not path.is_dir() and (path.exists() or not may_be_new):
        raise ConfigError(f"--path: there is no directory {path}")
    return path


def show(args: argparse.Namespace, record: Any, text: str) -> None:
    """Prints one or the other."""
    print(json.dumps(record, indent=2) if args.json else text)


def age(used_ns: int) -> str:
    """How long ago: `3 min`, `2.5 h`, `8 days`."""
    seconds = max(0.0, time.time() - used_ns / 1e9)
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    if seconds < 2 * _DAY_S:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / _DAY_S:.0f} days"
