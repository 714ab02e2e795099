"""The commands for the models on this machine and those of a running server."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from quire import env
from quire.cli.completion import SHELLS, script
from quire.cli.http_client import Server
from quire.config.checkpoint.model_files import DEMO_MODEL, has_file, read_config
from quire.config.command_line.parser import Parser
from quire.config.model_lookup.aliases import read_aliases, remove_alias, set_alias
from quire.config.model_lookup.disk.places import found_models
from quire.config.model_lookup.hub import fetch_model, resolve_model
from quire.config.model_lookup.library import (
    LibraryModel,
    cached_model,
    models_of,
    remove_model,
    verify_files,
)
from quire.errors import ConfigError, ModelNotFoundError, QuireError
from quire.gguf.projectors.names import NO_IMAGES
from quire.log.writer import one_line, say
from quire.models import ModelFamily, ModelRegistry
from quire.units import format_bytes
from quire.weights import PACKED_NAME, projector_file
from quire.weights.packed_file import read_packed_header


def pull_options(parser: Parser) -> None:
    parser.add_argument(
        "models", nargs="*", metavar="MODEL", help="Hub ids, with or without hf.co/."
    )
    parser.add_argument("--revision", help="A branch, tag or commit (default: main).")
    parser.add_argument(
        "--json", action="store_true", help="Print the progress as lines of JSON in Ollama's form."
    )
    parser.add_argument(
        "--verify", action="store_true", help="Compare the checksums of files that are here, too."
    )


def pull(args: argparse.Namespace) -> int:
    """Fetch models from the hub: `quire pull org/name`, or `org/name:Q4_K_M` for a GGUF file.

    A download whose connection broke goes on where it ended. What was fetched is compared with the
    hub's checksums. HF_ENDPOINT names a mirror, HF_TOKEN a token for private models.
    """
    for name in named(args.models):
        if args.json:
            if not _pull_in_lines(name, args):
                return 1
            continue
        pulled = pull_model(name, revision=args.revision, verifies_all=args.verify)
        model = pulled.model
        say(
            f"{model.name}: {format_bytes(model.num_bytes)} in {place_of(model)} "
            f"(commit {model.commit[:7]}, {pulled.num_verified} checksums compared)"
        )
    return 0


def _pull_in_lines(name: str, args: argparse.Namespace) -> bool:
    """Pull a model; print the progress, and an error, as lines. Return whether it is here."""
    lines = PullLines(name)
    try:
        pull_model(name, revision=args.revision, verifies_all=args.verify, lines=lines)
    except QuireError as error:
        lines.write(error=str(error))
        return False
    lines.write(status="success")
    return True


def local_options(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="Print JSON for programs.")
    add_models_dir(parser)


def add_models_dir(parser: Parser | argparse._ArgumentGroup) -> None:
    """Add the option for folders in which models are looked for."""
    parser.add_argument(
        "--models-dir", action="append", default=[], metavar="DIR",
        help="A folder with models, also Ollama's or LM Studio's; may recur. By default the "
        "folders of Ollama, LM Studio and llama.cpp.",
    )  # fmt: skip


def local(args: argparse.Namespace) -> int:
    """List the models on this machine: the bundled one, those in the hub's cache, and those of
    Ollama, LM Studio and llama.cpp, or of --models-dir."""
    names: dict[str, list[str]] = {}
    for alias, model in read_aliases().items():
        names.setdefault(model, []).append(alias)
    found = models_of(env.hub_cache_dir())
    elsewhere = found_models(args.models_dir)
    for note in elsewhere.notes:
        say(one_line(note), file=sys.stderr)
    if args.json:
        rows: list[dict[str, Any]] = [
            {
                "name": one.name, "kind": one.kind, "num_bytes": one.num_bytes,
                "modified": one.modified, "commit": one.commit, "is_complete": one.is_complete,
                "aliases": names.get(one.name, []), "source": "hub",
            }
            for one in found
        ]  # fmt: skip
        rows += [
            {
                "name": one.name, "kind": one.kind, "num_bytes": one.num_bytes,
                "modified": one.modified, "is_complete": not one.problem,
                "aliases": names.get(one.name, []), "source": one.source, "path": str(one.path),
                "problem": one.problem,
            }
            for one in elsewhere.models
        ]  # fmt: skip
        say(json.dumps(rows, indent=2))
        return 0
    lines: list[Sequence[str]] = [
        (
            one.name, one.kind, format_bytes(one.num_bytes),
            ago(one.modified) if one.is_complete else "incomplete", "hub",
            ", ".join(names.get(one.name, [])),
        )
        for one in found
    ]  # fmt: skip
    lines += [
        (
            one.name, one.kind, format_bytes(one.num_bytes),
            "cannot be used" if one.problem else ago(one.modified),
            str(one.place) if one.source == "folder" else one.source,
            ", ".join(names.get(one.name, [])),
        )
        for one in elsewhere.models
    ]  # fmt: skip
    lines.append((DEMO_MODEL, "bundled", "", "", "", ", ".join(names.get(DEMO_MODEL, []))))
    say(table(("NAME", "FORMAT", "SIZE", "FETCHED", "FROM", "ALIASES"), lines))
    for one in elsewhere.models:
        if one.problem:
            say(one_line(f"{one.name}: {one.problem}"), file=sys.stderr)
    listed = {DEMO_MODEL, *(one.name for one in found), *(one.name for one in elsewhere.models)}
    others = {model: aliases for model, aliases in names.items() if model not in listed}
    for model, aliases in others.items():
        say(one_line(f"{', '.join(aliases)} -> {model}"))
    return 0


_KEYS = (
    "architectures", "num_hidden_layers", "hidden_size", "max_position_embeddings", "vocab_size",
)  # fmt: skip


def show_options(parser: Parser) -> None:
    parser.add_argument(
        "model",
        nargs="?",
        default=DEMO_MODEL,
        metavar="MODEL",
        help="A hub id, a path, or an alias; without one, the bundled demo model.",
    )
    parser.add_argument("--json", action="store_true", help="Print JSON for programs.")


def show(args: argparse.Namespace) -> int:
    """Show what is known of a model on this machine: its files and its configuration."""
    facts = facts_of(args.model)
    if args.json:
        say(json.dumps(facts, indent=2))
        return 0
    width = max(map(len, facts))
    for name, value in facts.items():
        text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        say(f"{name:<{width}}  {one_line(text)}")
    return 0


def facts_of(name: str) -> dict[str, Any]:
    """Names and values. Raises ModelNotFoundError for a model that is not on this machine."""
    facts: dict[str, Any] = {"name": name}
    try:
        model = cached_model(name)
    except ModelNotFoundError:
        facts["path"] = str(resolve_model(name, needs_weights=False, fetches=False))
    else:
        facts = {
            "name": model.name, "path": str(place_of(model)), "commit": model.commit,
            "size": format_bytes(model.num_bytes),
            "files": [file.name for file in model.files],
        }  # fmt: skip
    directory = resolve_model(name, fetches=False)
    config = read_config(directory)
    text = config.get("text_config")
    known = {**config, **(text if isinstance(text, dict) else {})}
    facts |= {key: known[key] for key in _KEYS if key in known}
    quantised = config.get("quantization_config")
    if isinstance(quantised, dict):
        facts["quantisation"] = quantised.get("quant_method", "unknown")
    if has_file(directory / PACKED_NAME):
        packed = read_packed_header(directory / PACKED_NAME)
        facts["packed"] = f"{packed.quantization or packed.dtype}, for tier {packed.isa}"
        if packed.calibration is not None:
            facts["calibrated with"] = str(packed.calibration)
    if (encoder := projector_file(directory)) is not None:
        facts["image encoder"] = encoder.readlink().name
    elif NO_IMAGES in config:
        facts["image encoder"] = f"none: {config[NO_IMAGES]}"
    facts["parameters"] = _num_parameters(config)
    return facts


def _num_parameters(config: Any) -> str:
    from quire.models import build_program

    try:
        count = sum(param.num_elements for param in build_program(config).params())
    except QuireError:
        return "unknown: transformers runs this model"
    return f"{count / 1e9:.2f}B" if count >= 1e9 else f"{count / 1e6:.1f}M"


def ps_options(parser: Parser) -> None:
    parser.add_argument(
        "--url", default="http://localhost:8000/v1", help="The server's address; /v1 is optional."
    )
    parser.add_argument("--api-key", help="Overrides the environment variable OPENAI_API_KEY.")
    parser.add_argument("--json", action="store_true", help="Print JSON for programs.")


def ps(args: argparse.Namespace) -> int:
    """Show the models of a running server, and which of them are loaded."""
    cards = Server(args.url, args.api_key).models()
    if args.json:
        say(json.dumps(cards, indent=2))
        return 0
    rows = []
    for card in cards:
        status = card.get("status") or {"value": "loaded"}
        left = status.get("expires_in")
        rows.append((
            str(card.get("id")), status["value"],
            format_bytes(status["num_bytes"]) if status.get("num_bytes") else "",
            str(status.get("num_requests", "")), "" if left is None else f"in {left:.0f} s",
        ))  # fmt: skip
    say(table(("NAME", "STATE", "MEMORY", "REQUESTS", "UNLOADED"), rows))
    return 0


def stop_options(parser: Parser) -> None:
    parser.add_argument("models", nargs="*", metavar="MODEL", help="As `quire ps` names them.")
    parser.add_argument(
        "--url", default="http://localhost:8000/v1", help="The server's address; /v1 is optional."
    )
    parser.add_argument("--api-key", help="Overrides the environment variable OPENAI_API_KEY.")


def stop(args: argparse.Namespace) -> int:
    """Unload models of a running server, which frees their memory; a request loads them again.

    A server of one model keeps it; stop the server in place of the model.
    """
    server = Server(args.url, args.api_key)
    for name in named(args.models):
        server.unload(name)
        say(one_line(f"{name}: unloaded"))
    return 0


def rm_options(parser: Parser) -> None:
    parser.add_argument("models", nargs="*", metavar="MODEL", help="As `quire list` names them.")


def rm(args: argparse.Namespace) -> int:
    """Delete models from the hub's cache: `quire rm org/name`, or `org/name:Q4_K_M` for one
    file."""
    models = [cached_model(name) for name in named(args.models)]  # all exist, or none is deleted
    for model in models:
        freed = remove_model(model, env.hub_cache_dir())
        say(f"{one_line(model.name)}: deleted, {format_bytes(freed)} are free")
    return 0


def alias_options(parser: Parser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="The short name.")
    parser.add_argument("model", nargs="?", metavar="MODEL", help="A hub id, a path, or an alias.")
    parser.add_argument("--delete", action="store_true", help="Delete the name; the model stays.")


def alias(args: argparse.Namespace) -> int:
    """Give a model a short name: `quire alias small org/name:Q4_K_M`. Without words, list the
    names."""
    if args.delete:
        if args.name is None or args.model is not None:
            raise ConfigError("--delete needs one name, and no model")
        remove_alias(args.name)
    elif args.model is not None:
        set_alias(args.name, args.model)
        say(one_line(f"{args.name} -> {read_aliases()[args.name]}"))
    elif args.name is not None:
        raise ConfigError(f"{args.name!r} needs a model: quire alias {args.name} MODEL")
    else:
        for name, model in sorted(read_aliases().items()):
            say(one_line(f"{name} -> {model}"))
    return 0


def completion_options(parser: Parser) -> None:
    parser.add_argument("shell", nargs="?", metavar="SHELL", help="bash, zsh or fish.")


def completion(args: argparse.Namespace) -> int:
    """Print the code that lets a shell complete the commands: `eval "$(quire completion bash)"`.

    For fish: quire completion fish | source. Put the line into the shell's start file.
    """
    if args.shell not in SHELLS:
        raise ConfigError(f"name a shell, one of {', '.join(SHELLS)}: quire completion bash")
    say(script(args.shell), end="")
    return 0


_LINE_S = 0.2
"""Shortest time between two lines of progress."""


@dataclass(frozen=True, slots=True)
class Pulled:
    """A model that was fetched."""

    model: LibraryModel
    num_verified: int
    """Files whose checksums were compared."""


class PullLines:
    """Writes the progress of a pull to standard output, a JSON object a line, as Ollama does.
    Several threads may use it."""

    def __init__(self, name: str) -> None:
        self._digest = f"sha256:{hashlib.sha256(name.encode()).hexdigest()}"
        self._status = f"pulling {name}"
        self._next_at = 0.0
        self._lock = Lock()
        """Held while a line is written."""

    def write(self, **fields: Any) -> None:
        """Writes one line."""
        with self._lock:
            sys.stdout.write(f"{json.dumps(fields)}\n")
            sys.stdout.flush()

    def note(self, text: str) -> None:
        """Writes a text as the status."""
        self.write(status=text)

    def fetched(self, num_bytes: int, total: int) -> None:
        """Writes the sums, a few times a second."""
        now = time.monotonic()
        if now < self._next_at and num_bytes < total:
            return
        self._next_at = now + _LINE_S
        self.write(status=self._status, digest=self._digest, total=total, completed=num_bytes)


def pull_model(
    name: str,
    *,
    revision: str | None = None,
    verifies_all: bool = False,
    lines: PullLines | None = None,
) -> Pulled:
    """Fetches what the cache lacks of a model, and compares the checksums of that, or of
    everything. `lines` replaces the progress bars. Raises ModelNotFoundError, CheckpointError,
    ConfigError."""
    began_at = time.time() - 1
    if lines is not None:
        lines.write(status="pulling manifest")
    report, note = (None, None) if lines is None else (lines.fetched, lines.note)
    fetched = fetch_model(name, revision=revision, report=report, note=note)
    if lines is not None:
        lines.write(status="verifying sha256 digest")
    done = {path.resolve() for path in fetched.verified}
    files = [path for path in fetched.snapshot.rglob("*") if path.is_file()]
    fresh = [path for path in files if verifies_all or path.stat().st_mtime >= began_at]
    others = (path for path in fresh if path.resolve() not in done)
    count = len(done) + verify_files(others)
    return Pulled(cached_model(name if fetched.file is None else fetched.name), count)


def named(models: list[str]) -> list[str]:
    """The models of a command line. Raises ConfigError if there are none."""
    if not models:
        raise ConfigError("name at least one model, such as org/name or org/name:Q4_K_M")
    return models


_MAX_WIDTH = 60
"""Widest column; a longer text moves the rest of its own line."""


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns of texts below their names."""
    rows = [[one_line(text) for text in row] for row in rows]
    columns = zip(head, *rows, strict=True)
    widths = [min(max(map(len, column)), _MAX_WIDTH) for column in columns]
    lines = [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in (head, *rows)
    ]
    return "\n".join(lines)


def ago(seconds: float) -> str:
    """A time in the past as text: `3 days ago`."""
    passed = max(0.0, time.time() - seconds)
    for size, unit in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if passed >= size:
            count = int(passed // size)
            return f"{count} {unit}{'s' * (count != 1)} ago"
    return "now"


def place_of(model: LibraryModel) -> Path:
    """The path that leads to the model."""
    return model.files[0] if model.kind == "gguf" else model.files[0].parent


def models_options(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="Print JSON for programs.")
    parser.add_argument("--markdown", action="store_true", help="Print the table for docs.")


def models(args: argparse.Namespace) -> int:
    """List the supported architectures, with well-known models of each."""
    rows = families()
    if args.json:
        found = {family.name: [family.models, list(names)] for family, names in rows}
        say(json.dumps(found, indent=2))
    elif args.markdown:
        say(markdown())
    else:
        for family, names in rows:
            say(f"{', '.join(names):<58} {family.models}")
    return 0


def markdown() -> str:
    """The table of docs/models.md."""
    lines = ["| models | `architectures` in config.json |", "|---|---|"]
    for family, names in families():
        lines.append(f"| {family.models} | {', '.join(f'`{name}`' for name in names)} |")
    return "\n".join(lines)


def families() -> list[tuple[ModelFamily, list[str]]]:
    """Every family with its architectures, sorted by the first architecture."""
    found: dict[str, tuple[ModelFamily, list[str]]] = {}
    for name in ModelRegistry.get_supported_archs():
        family = ModelRegistry.resolve([name])
        found.setdefault(family.name, (family, []))[1].append(name)
    return list(found.values())
