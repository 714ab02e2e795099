"""Writes files atomically: to a temporary file in the same directory, synced, then renamed.

Used for all result files. Knows no formats.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from quire.errors import ConfigError, QuireError


@contextmanager
def replacing(path: Path, *, keeps_unfinished: bool = False) -> Iterator[BinaryIO]:
    """Opens a new file that gets the name `path` only when it is complete and on disk.

    `keeps_unfinished`: after a failure the incomplete file stays; the error names it. A pipe or a
    device is written directly. Raises ConfigError if writing fails.
    """
    try:
        place = path.resolve()
        is_plain = place.is_file() or not place.exists()
    except (OSError, RuntimeError) as error:  # RuntimeError: links that lead in a circle
        raise ConfigError(f"{path} cannot be written: {error}") from None
    ending = ".part" if keeps_unfinished else f".{os.getpid()}.tmp"
    unfinished = place.with_name(place.name + ending) if is_plain else place
    try:
        with unfinished.open("wb") as file:
            yield file
            file.flush()
            if is_plain:
                os.fsync(file.fileno())
        if is_plain:
            unfinished.replace(place)
            _sync_directory(place.parent)
    except QuireError:
        raise
    except OSError as error:
        is_kept = keeps_unfinished and is_plain and unfinished.exists()
        rest = f"; the incomplete file is {unfinished}" if is_kept else ""
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}{rest}") from None
    finally:
        if is_plain and not keeps_unfinished:
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Replaces or creates a file. Raises ConfigError if that fails."""
    with replacing(path) as file:
        file.write(text.encode())


def _sync_directory(directory: Path) -> None:
    """Makes the new name durable against a loss of power, if the file system supports it."""
    with suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
