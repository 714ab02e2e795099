"""What the commands for models on this machine share: pulling, and tables."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire import env
from quire.config.places.aliases import target_of
from quire.config.places.hub import fetch_model, hub_name
from quire.config.places.library import LibraryModel, find_model, verify_files
from quire.errors import ConfigError

_LINE_S = 0.2
"""Shortest time between two lines of progress."""


@dataclass(frozen=True, slots=True)
class Pulled:
    """A model that was fetched."""

    model: LibraryModel
    num_verified: int
    """Files whose checksums were compared."""


class PullLines:
    """Writes the progress of a pull to standard output, a JSON object a line, as Ollama does."""

    def __init__(self, name: str) -> None:
        self._digest = f"sha256:{hashlib.sha256(name.encode()).hexdigest()}"
        self._status = f"pulling {name}"
        self._next_at = 0.0

    def write(self, **fields: Any) -> None:
        """Writes one line."""
        print(json.dumps(fields), flush=True)

    def fetched(self, num_bytes: int, total: int) -> None:
        """Writes the sums, a few times a second. Called by several threads."""
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
    snapshot = fetch_model(name, revision=revision, report=None if lines is None else lines.fetched)
    if lines is not None:
        lines.write(status="verifying sha256 digest")
    files = [path for path in snapshot.iterdir() if path.is_file()]
    fresh = [path for path in files if verifies_all or path.stat().st_mtime >= began_at]
    count = verify_files(iter(fresh))
    return Pulled(cached_model(name), count)


def cached_model(name: str) -> LibraryModel:
    """The model of this name, alias or address in the hub's cache. Raises ModelNotFoundError."""
    cache = env.hub_cache_dir()
    repo, wanted = hub_name(target_of(name) or name, cache)
    return find_model(repo if wanted is None else f"{repo}:{wanted}", cache)


def named(models: list[str]) -> list[str]:
    """The models of a command line. Raises ConfigError if there are none."""
    if not models:
        raise ConfigError("name at least one model, such as org/name or org/name:Q4_K_M")
    return models


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns of texts below their names."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
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
