"""The models on this machine: those in the hub's cache, listed, checked and removed.

Reads huggingface_hub's layout of directories and needs neither the package nor a network. Called by
`quire list`, `show`, `pull` and `rm`, and by the server's routes for them.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from quire import env
from quire.config.model_lookup import gguf
from quire.config.model_lookup.aliases import target_of
from quire.config.model_lookup.gguf import is_whole, quant_of
from quire.config.model_lookup.hub import hub_name, missing_weights
from quire.config.model_lookup.resume import digest_of
from quire.errors import CheckpointError, ConfigError, ModelNotFoundError, quoted

_PREFIX = "models--"
_MAX_REPOS = 10_000
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class LibraryModel:
    """A model in the hub's cache."""

    name: str
    """Name that commands accept: `org/name`, or `org/name:Q4_K_M` for one of several GGUF files."""
    repo: str
    kind: Literal["safetensors", "gguf"]
    files: tuple[Path, ...]
    """Its files in the snapshot."""
    num_bytes: int
    modified: float
    """When the newest file was fetched, in seconds since the epoch."""
    commit: str
    is_complete: bool
    """False: a download has not ended."""


def models_of(cache: Path) -> list[LibraryModel]:
    """All models of the cache, sorted by name."""
    found = list[LibraryModel]()
    with suppress(OSError):
        repos = sorted(path for path in cache.iterdir() if path.name.startswith(_PREFIX))
        for repo in repos[:_MAX_REPOS]:
            with suppress(OSError):
                found += _models_of_repo(repo)
    return found


def cached_model(name: str) -> LibraryModel:
    """The model of this name, alias or address in the hub's cache. Raises QuireError."""
    cache = env.hub_cache_dir()
    repo, wanted = hub_name(target_of(name) or name, cache)
    return find_model(repo if wanted is None else f"{repo}:{wanted}", cache)


def find_model(name: str, cache: Path) -> LibraryModel:
    """The model of a name, which may leave out the file if there is only one. Raises
    ModelNotFoundError."""
    known = models_of(cache)
    repo, wanted = gguf.name_of_file(name)
    wanted = wanted and wanted.lower()
    candidates = [one for one in known if one.repo == repo and wanted in (None, *_names_of(one))]
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        names = ", ".join(one.name for one in candidates)
        raise ModelNotFoundError(f"{name} may be any of {names}; give the whole name")
    names = ", ".join(one.name for one in known[:8]) or "none"
    raise ModelNotFoundError(
        f"{quoted(name)} is not in the hub's cache {cache}, which has: {names}"
    )


def remove_model(model: LibraryModel, cache: Path) -> int:
    """Deletes a model from the cache; returns the bytes that are free. The text files of a
    repository stay while another model of it does. Raises ConfigError."""
    directory = _directory(model.repo, cache)
    others = [one for one in _models_of_repo(directory) if one.name != model.name]
    try:
        if not others:
            size = _size(directory)
            shutil.rmtree(directory)
            shutil.rmtree(cache / ".locks" / directory.name, ignore_errors=True)
            return size
        kept = {file.resolve() for one in others for file in one.files}
        freed = 0
        for file in model.files:
            blob = file.resolve()
            if blob in kept:
                continue
            freed += blob.stat().st_size
            for link in (*directory.glob("snapshots/*/*"), *directory.glob("snapshots/*/*/*")):
                if link.resolve() == blob:
                    link.unlink()
            blob.unlink(missing_ok=True)
        return freed
    except OSError as error:
        raise ConfigError(
            f"{model.name} cannot be deleted: {error.strerror}: {error.filename}"
        ) from None


def verify_files(files: Iterator[Path]) -> int:
    """Compares files with the checksums that the hub gave them; returns how many have one. A file
    that differs is deleted, so that the next download fetches it again. Raises CheckpointError."""
    count = 0
    for file in files:
        blob = file.resolve()
        if not _SHA256.fullmatch(blob.name):
            continue  # small files are named by git's checksum, or by none
        if digest_of(blob, blob.name) != blob.name:
            file.unlink()
            blob.unlink(missing_ok=True)
            raise CheckpointError(
                f"{file.name} does not have the checksum that the hub gives it, and was deleted; "
                "pull the model again"
            )
        count += 1
    return count


def _names_of(model: LibraryModel) -> list[str]:
    """The texts after the colon that mean this model, in small letters."""
    names = [quant_of(model.files[0]), *(file.name for file in model.files)]
    return [name.lower() for name in names]


def _models_of_repo(directory: Path) -> list[LibraryModel]:
    repo = directory.name.removeprefix(_PREFIX).replace("--", "/")
    snapshot = _snapshot(directory)
    if snapshot is None:
        return []
    found = list[LibraryModel]()

    def add(
        name: str, kind: Literal["safetensors", "gguf"], files: list[Path], is_complete: bool
    ) -> None:
        stats = [file.stat() for file in files if file.exists()]
        found.append(LibraryModel(
            name, repo, kind, tuple(files), sum(one.st_size for one in stats),
            max((one.st_mtime for one in stats), default=0.0), snapshot.name,
            is_complete and len(stats) == len(files),
        ))  # fmt: skip

    files = sorted(path for path in snapshot.iterdir() if not path.is_dir())
    ggml = gguf.ggml_files(path.name for path in files)
    for name in ggml:
        add(f"{repo}:{name}", "gguf", [snapshot / name], True)
    if not ggml and any(path.suffix in (".safetensors", ".bin") for path in files):
        has_weights = not missing_weights(snapshot)
        add(repo, "safetensors", [path for path in files if path.suffix != ".gguf"], has_weights)
    groups: dict[str, list[Path]] = {}
    for path in [*files, *sorted(snapshot.glob("*/*.gguf"))]:
        if path.suffix == ".gguf" and not gguf.is_projector(path.name):
            groups.setdefault(quant_of(path), []).append(path)
    for quant, group in groups.items():
        add(f"{repo}:{quant}", "gguf", group, is_whole(path.name for path in group))
    if not found:
        add(repo, "safetensors", files, False)
    return found


def _snapshot(directory: Path) -> Path | None:
    """The snapshot of `main`, or the newest one."""
    with suppress(OSError):
        commit = (directory / "refs" / "main").read_text().strip()[:40]
        if commit and (directory / "snapshots" / commit).is_dir():
            return directory / "snapshots" / commit
    found = sorted(directory.glob("snapshots/*"), key=lambda path: path.stat().st_mtime)
    return found[-1] if found else None


def _directory(repo: str, cache: Path) -> Path:
    return cache / f"{_PREFIX}{repo.replace('/', '--')}"


def _size(directory: Path) -> int:
    return sum(
        path.stat().st_size
        for path in directory.rglob("*")
        if path.is_file() and not path.is_symlink()
    )
