"""Model directories in the user's cache, made of files of other forms.

Their weights are links to the files. Everything else of Quire then knows directories alone.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from quire import env
from quire.errors import CheckpointError, ConfigError, reason
from quire.files import write_text

_PREFIXES = ("gguf-", "whisper-")


@dataclass(frozen=True, slots=True)
class Contents:
    """The texts and links of a directory, by the names of their files."""

    texts: Mapping[str, str]
    links: Mapping[str, Path]


def unpacked(
    kind: str, version: int, files: Sequence[Path], contents: Callable[[], Contents]
) -> Path:
    """The directory of a model, which is made once for files of these places, sizes and times of
    change.

    `kind`: gguf or whisper; `version`: of the contents. Raises CheckpointError for a file that
    cannot be read, and ConfigError where no directory can be written.
    """
    try:
        name = f"{kind}-{_digest(version, files)}"
    except OSError as error:
        raise CheckpointError(f"{files[0]}: cannot be read: {reason(error)}") from None
    for parent in _parents():
        if (parent / name / "config.json").is_file():
            return parent / name
    made, failure = contents(), None
    for parent in _parents():
        try:
            return _write(parent, name, made)
        except OSError as error:
            failure = error
    raise ConfigError(
        f"{files[0]}: no directory can be written for what the file says of the model: {failure}; "
        "set XDG_CACHE_HOME to a place that can be written"
    )


def is_unpacked(directory: Path) -> bool:
    """Whether `unpacked` has made this directory: its links lead where the user has said."""
    return directory.name.startswith(_PREFIXES) and any(
        directory.parent == parent.resolve() for parent in _parents()
    )


def _parents() -> Iterable[Path]:
    """The places of such directories, the first one that can be written first."""
    with suppress(RuntimeError):
        yield env.cache_dir() / "gguf"
    yield Path(tempfile.gettempdir()) / f"quire-gguf-{os.getuid()}"


def _digest(version: int, files: Iterable[Path]) -> str:
    state = hashlib.sha256(f"{version}".encode())
    for file in files:
        status = file.stat()
        state.update(os.fsencode(file.resolve()))
        state.update(f"\n{status.st_size} {status.st_mtime_ns}\n".encode())
    return state.hexdigest()[:32]


def _write(parent: Path, name: str, contents: Contents) -> Path:
    """Makes the directory under another name and renames it, so that it is there as a whole."""
    parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if parent.stat().st_uid != os.getuid():
        raise PermissionError(f"{parent} belongs to another user")
    _remove_stale(parent)
    unfinished = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=parent))
    try:
        for file_name, text in contents.texts.items():
            (unfinished / file_name).parent.mkdir(exist_ok=True)
            write_text(unfinished / file_name, text)
        for link, file in contents.links.items():
            (unfinished / link).symlink_to(file)
        with suppress(OSError):  # another process was quicker
            unfinished.rename(parent / name)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    if not (parent / name / "config.json").is_file():
        raise FileNotFoundError(f"{parent / name} cannot be made")
    return parent / name


def _remove_stale(parent: Path) -> None:
    """Directories whose files are gone, so that the cache does not grow without bound."""
    for prefix in _PREFIXES:
        for directory in parent.glob(f"{prefix}*"):
            links = [file for file in directory.glob("*") if file.is_symlink()]
            if not links or not all(link.exists() for link in links):
                shutil.rmtree(directory, ignore_errors=True)
