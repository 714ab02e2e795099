"""The commands of quire kv for the KV store of files."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from quire import env
from quire.cli.command import Command, Group
from quire.config.checkpoint.model_files import read_text
from quire.config.command_line.engine_options import add_engine_options, engine_args
from quire.config.command_line.parser import Parser
from quire.config.command_line.values import parse_duration, parse_size
from quire.errors import ConfigError, quoted
from quire.kvstore.directory import check, chosen, folders, remove
from quire.kvstore.tiers import disk_files
from quire.log.writer import say
from quire.units import GiB, format_bytes

KV = Group(
    "Inspects and cleans up the K/V that Quire keeps in files, also while engines run.",
    (
        Command("ls", "kv:ls", "List the stored K/V: one line per model and tenant"),
        Command("du", "kv:du", "Show the total size of the stored K/V"),
        Command("verify", "kv:verify", "Read every file and compare it with its checksum"),
        Command("prune", "kv:prune", "Remove old K/V, K/V above a size, or all K/V"),
        Command("warm", "kv:warm", "Compute the prompts of a file, so that their K/V is stored"),
        Command(
            "bench",
            "quire.bench.kv_tiers:bench",
            "Measure each tier, and when loading is faster than computing",
        ),
    ),
)


def ls_options(parser: Parser) -> None:
    add_place(parser)


def ls(args: argparse.Namespace) -> int:
    """List the K/V that the KV store keeps in files: one line per model and tenant, last used
    first.

    A folder's name is derived from the model's weights, the arithmetic and the tenant; the files do
    not name the model.
    """
    found = folders(place_of(args))
    lines = [f"{'folder':<32}  {'chunks':>8}  {'size':>10}  {'last used':>10}  {'first used':>10}"]
    lines += [
        f"{folder.name}  {folder.num_chunks:>8,}  {format_bytes(folder.num_bytes):>10}  "
        f"{age(folder.last_used_ns):>10}  {age(folder.first_used_ns):>10}"
        for folder in found
    ]
    show(args, [asdict(folder) for folder in found], "\n".join(lines))
    return 0


def du_options(parser: Parser) -> None:
    add_place(parser)


def du(args: argparse.Namespace) -> int:
    """Show the total size of the K/V that the KV store keeps in files."""
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


def verify_options(parser: Parser) -> None:
    add_place(parser)
    parser.add_argument("--delete", action="store_true", help="Remove damaged files.")


def verify(args: argparse.Namespace) -> int:
    """Read every file of the KV store and compare it with its checksum.

    An engine checks each file that it reads in the same way and drops damaged files. The exit code
    is 1 if a file is damaged.
    """
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


_FOLDER = re.compile(r"[0-9a-f]{1,32}")


def prune_options(parser: Parser) -> None:
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


def prune(args: argparse.Namespace) -> int:
    """Remove K/V from the KV store's files: K/V not used for some time, the least recently used K/V
    above a size, the K/V of one model and tenant, or all of it."""
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


_MAX_FILE_BYTES = GiB


def warm_options(parser: Parser) -> None:
    parser.add_argument("file", nargs="?", metavar="PROMPTS", help="A file of prompts.")
    add_engine_options(parser)


def warm(args: argparse.Namespace) -> int:
    """Compute prompts and store their K/V in the KV store: `quire kv warm PROMPTS MODEL`.

    PROMPTS is a file with one prompt per line: a text, or a JSON object with `prompt` (a text or
    token ids) and optionally `cache_salt`, or with `messages`.
    """
    if args.file is None:
        raise ConfigError("give a file of prompts: quire kv warm PROMPTS MODEL")
    prompts = list(_prompts(env.expanded(args.file)))
    from quire.llm import LLM
    from quire.params import SamplingParams

    with closing(LLM.from_engine_args(engine_args(args))) as llm:
        if llm.llm_engine.config.kv_store is None:
            raise ConfigError("this engine has no KV store (see quire explain); give --kv-store")
        params = SamplingParams(max_tokens=1)
        texts: list[Any] = [one for one in prompts if "messages" not in one]
        chats = [one["messages"] for one in prompts if "messages" in one]
        found = llm.generate(texts, params) if texts else []
        found += llm.chat(chats, params) if chats else []
    num_tokens = sum(len(one.prompt_token_ids or ()) for one in found)
    num_cached = sum(one.num_cached_tokens or 0 for one in found)
    say(f"{len(found):,} prompts, {num_tokens:,} tokens, {num_cached:,} of them already stored")
    return 0


def _prompts(path: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(read_text(path, max_bytes=_MAX_FILE_BYTES).splitlines(), 1):
        if not line.strip():
            continue
        if not line.startswith("{"):
            yield {"prompt": line}
            continue
        try:
            yield _of_json(json.loads(line))
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path}, line {number}: {error}") from None


def _of_json(value: dict[str, Any]) -> dict[str, Any]:
    match value:
        case {"messages": list(), **rest} if not rest:
            return value
        case {"prompt": str() | list() as prompt, **rest} if rest.keys() <= {"cache_salt"}:
            name = "prompt" if isinstance(prompt, str) else "prompt_token_ids"
            return {name: prompt, **rest}
    raise ValueError("the object must have prompt, and optionally cache_salt, or only messages")


_DAY_S = 86_400


def add_place(parser: Parser) -> None:
    """Declare the options for the directory and the output format."""
    parser.add_argument(
        "--path", type=Path, help="The directory of chunk files (default: quire/kv in ~/.cache)."
    )
    parser.add_argument("--json", action="store_true", help="Print JSON.")


def place_of(args: argparse.Namespace) -> Path:
    """The directory. Raises ConfigError if a given directory does not exist."""
    if args.path is None:
        try:
            return env.cache_dir() / "kv"
        except RuntimeError:
            raise ConfigError("this user has no home directory; give --path") from None
    path = env.expanded(str(args.path))
    if not path.is_dir():
        raise ConfigError(f"--path {path} must be an existing directory")
    return path


def show(args: argparse.Namespace, record: Any, text: str) -> None:
    """Print the record as JSON, or the text."""
    say(json.dumps(record, indent=2) if args.json else text)


def age(used_ns: int) -> str:
    """Format the age of a time: `3 min`, `2.5 h`, `8 days`."""
    seconds = max(0.0, time.time() - used_ns / 1e9)
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    if seconds < 2 * _DAY_S:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / _DAY_S:.0f} days"
