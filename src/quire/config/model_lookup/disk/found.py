"""`LocalModel`: a model that was found on the disk; `Scan`: lists folders within a limit."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from quire.config.model_lookup.settings import AliasSettings
from quire.errors import quoted, reason
from quire.gguf.container import MAGIC
from quire.units import MiB, format_bytes

MAX_ENTRIES = 20_000
"""Most entries of folders that one scan looks at."""
MAX_BYTES = 64 * MiB
"""Most bytes of manifests and texts that one scan reads."""
_MAX_NOTES = 100

SourceName = Literal["ollama", "lm studio", "llama.cpp", "folder"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalModel:
    """A model, its files, and its defaults."""

    name: str
    """Name that commands accept and a server offers."""
    others: tuple[str, ...] = ()
    """Further names that commands accept; the first is the one for a model whose name is taken."""
    source: SourceName
    place: Path
    """The folder in which it was found."""
    path: Path
    """A GGUF file, one of whisper.cpp, or a directory."""
    kind: Literal["gguf", "ggml", "safetensors"] = "gguf"
    num_bytes: int
    modified: float
    """When it was changed, in seconds since the epoch."""
    projector: Path | None = None
    """File with an image encoder, if it is not next to the model's file under its usual name."""
    settings: AliasSettings = field(default_factory=AliasSettings)
    go_template: str = ""
    """Ollama's template, for a file without a chat template."""
    notes: tuple[str, ...] = ()
    """Parts that are not used, and why."""
    problem: str = ""
    """Why it cannot be used; "": nothing is known that speaks against it."""


@dataclass(slots=True)
class Scan:
    """Lists folders until a limit is reached. A folder is listed once, so circles of links end."""

    left: int = MAX_ENTRIES
    bytes_left: int = MAX_BYTES
    notes: list[str] = field(default_factory=list)
    """The problems: files that cannot be read, and the place where the scan stopped."""
    has_stopped: bool = False
    seen: set[tuple[int, int]] = field(default_factory=set)

    def listed(self, directory: Path) -> list[Path]:
        """The entries of a directory, sorted by name; none if it cannot be read, or was listed."""
        found = list[Path]()
        try:
            status = directory.stat()
            if (status.st_dev, status.st_ino) in self.seen:
                return []
            self.seen.add((status.st_dev, status.st_ino))
            with os.scandir(directory) as entries:
                for entry in entries:
                    if self.left <= 0:
                        self._stop(directory, f"{MAX_ENTRIES} files and folders")
                        break
                    self.left -= 1
                    found.append(directory / entry.name)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            self.note(f"{quoted(str(directory))} cannot be read: {reason(error)}")
        return sorted(found)

    def read(self, path: Path, max_bytes: int) -> bytes | None:
        """A regular file of at most so many bytes; None for anything else, and once the scan has
        read too much."""
        status = file_status(path)
        if status is None or status.st_size > max_bytes:
            return None
        if status.st_size > self.bytes_left:
            self._stop(path, f"{format_bytes(MAX_BYTES)} of manifests and texts")
            return None
        try:
            with path.open("rb") as file:
                found = file.read(status.st_size)
        except OSError:
            return None
        self.bytes_left -= len(found)
        return found

    def _stop(self, path: Path, limit: str) -> None:
        if not self.has_stopped:
            self.note(
                f"{quoted(str(path))}: the search stopped after {limit}; name a smaller folder "
                "with --models-dir"
            )
        self.has_stopped = True

    def note(self, text: str) -> None:
        """Keeps a line for the user."""
        if len(self.notes) < _MAX_NOTES and text not in self.notes:
            self.notes.append(text)


def file_status(path: Path) -> os.stat_result | None:
    """The status of a regular file, through links; None for anything else."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return None
    return status if stat.S_ISREG(status.st_mode) else None


def is_gguf_file(path: Path) -> bool:
    """Whether it is a regular file that begins as GGUF files do."""
    if file_status(path) is None:
        return False
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def size_and_time(paths: Iterable[Path]) -> tuple[int, float]:
    """The bytes of the regular files of these, and when the newest was changed."""
    known = [status for path in paths if (status := file_status(path)) is not None]
    return sum(one.st_size for one in known), max((one.st_mtime for one in known), default=0.0)
