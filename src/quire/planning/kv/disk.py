"""Examines where the KV store's files would go: part of the facts. Creates and writes nothing."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from quire import env
from quire.errors import quoted
from quire.planning.kv.options import AskedStore


@dataclass(frozen=True, slots=True)
class StoreDisk:
    """The directory of chunk files, which need not exist yet."""

    path: Path | None
    """None: the default directory cannot be determined."""
    free_bytes: int = 0
    """Free space of its file system for this user."""
    problem: str = ""
    """Why the directory cannot be used; "" if it can."""


def store_disk(asked: AskedStore) -> StoreDisk:
    """Examine the requested directory, or `kv` in Quire's cache directory."""
    path = asked.path
    if path is None:
        try:
            path = env.cache_dir().absolute() / "kv"
        except RuntimeError:
            return StoreDisk(None, problem="this user has no home directory")
    place = path
    try:
        while not place.exists() and place != place.parent:
            place = place.parent
        stat = os.statvfs(place)
    except OSError as error:
        return StoreDisk(path, problem=f"{quoted(str(place))}: {error.strerror}")
    if not place.is_dir():
        return StoreDisk(path, problem=f"{quoted(str(place))} is not a directory")
    if not os.access(place, os.W_OK | os.X_OK):
        return StoreDisk(path, problem=f"{quoted(str(place))} is not writable")
    return StoreDisk(path, stat.f_bavail * stat.f_frsize)
