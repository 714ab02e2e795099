"""Directories that exist while this process, or a part of it, runs."""

from __future__ import annotations

import shutil
import tempfile

_made: set[str] = set()


def make_scratch(prefix: str, parent: str | None = None) -> str:
    """Creates an empty directory that only its owner may read, in `parent` or where temporary
    files are. Raises OSError."""
    directory = tempfile.mkdtemp(prefix=prefix, dir=parent)
    _made.add(directory)
    return directory


def remove_scratch(directory: str) -> None:
    """Removes a directory of `make_scratch` with its files. Idempotent."""
    shutil.rmtree(directory, ignore_errors=True)
    _made.discard(directory)


def remove_all_scratch() -> None:
    """Removes all directories of `make_scratch`. For a process that ends without waiting for those
    who made them."""
    for directory in list(_made):
        remove_scratch(directory)
