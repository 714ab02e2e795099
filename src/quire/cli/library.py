"""What the commands for models on this machine share: pulling, and tables."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from quire import env
from quire.config.places.aliases import target_of
from quire.config.places.hub import fetch_model, hub_name
from quire.config.places.library import LibraryModel, find_model, verify_files
from quire.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Pulled:
    """A model that was fetched."""

    model: LibraryModel
    num_verified: int
    """Files whose checksums were compared."""


def pull_model(name: str, *, revision: str | None = None, verifies_all: bool = False) -> Pulled:
    """Fetches what the cache lacks of a model, and compares the checksums of that, or of
    everything. Raises ModelNotFoundError, CheckpointError, ConfigError."""
    began_at = time.time() - 1
    snapshot = fetch_model(name, revision=revision)
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
