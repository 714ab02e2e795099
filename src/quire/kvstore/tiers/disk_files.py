"""Scanning, reading, writing and removing chunk files. Does not know quotas. The functions raise
OSError."""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from quire.kvstore.eviction import Entry
from quire.kvstore.tiers import direct_io
from quire.kvstore.tiers import disk_paths as paths
from quire.kvstore.tiers.base import Buffer

_TEMP_ENDING = ".tmp"
_ABANDONED_S = 3600.0
"""Age in seconds after which an unfinished file counts as abandoned if files cannot be locked."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A chunk file found by a scan."""

    entry: Entry
    num_bytes: int
    used_ns: int
    """Time of last use, stored as modification time: nanoseconds since 1970."""


def scan(root: Path) -> Iterator[StoredFile]:
    """Yield all chunk files, in no particular order. Other files and unreadable ones are skipped.

    A missing root has no files.
    """
    for folder, prefix, file in _files(root):
        name = paths.chunk_name(file.name, prefix)
        info = _own_file(file) if name is not None else None
        if name is not None and info is not None:
            yield StoredFile(Entry(folder, name), info.st_size, info.st_mtime_ns)


def remove_abandoned(root: Path) -> int:
    """Remove unfinished files whose writers are gone. Returns the bytes of the remaining ones.

    The caller must hold the lock of the directory.
    """
    num_bytes = 0
    for folder, prefix, file in _files(root):
        if file.name.endswith(_TEMP_ENDING):
            with (
                suppress(*paths.MISSING),
                paths.directory_of(root, Entry(folder, prefix)) as directory,
            ):
                num_bytes += _remove_if_abandoned(directory, file.name)
    return num_bytes


def read(root: Path, entry: Entry, max_bytes: int, into: memoryview | None = None) -> Buffer | None:
    """Return the contents of a file. None: it is missing or longer than `max_bytes`. `into`: a
    buffer for the data."""
    try:
        with paths.directory_of(root, entry) as directory:
            descriptor = paths.open_file(directory, entry.name + paths.FILE_ENDING)
    except paths.MISSING:
        return None
    try:
        info = os.fstat(descriptor)
        if not paths.is_own_file(info) or info.st_size > max_bytes:
            return None
        return direct_io.read(descriptor, info.st_size, into)
    finally:
        os.close(descriptor)


def size(root: Path, entry: Entry) -> int | None:
    """Return the size of a file; None if it is missing."""
    try:
        with paths.directory_of(root, entry) as directory:
            return _size_in(directory, entry)
    except paths.MISSING:
        return None


def remove(root: Path, entry: Entry) -> int:
    """Remove a file. Returns the freed bytes; 0 if the file was missing."""
    try:
        with paths.directory_of(root, entry) as directory:
            num_bytes = _size_in(directory, entry)
            os.unlink(entry.name + paths.FILE_ENDING, dir_fd=directory)
            return num_bytes
    except paths.MISSING:
        return 0


def stamp(root: Path, entry: Entry, used_ns: int) -> None:
    """Set the time of last use of a file; a missing file is ignored."""
    with suppress(*paths.MISSING), paths.directory_of(root, entry) as directory:
        name, times = entry.name + paths.FILE_ENDING, (used_ns, used_ns)
        os.utime(name, ns=times, dir_fd=directory, follow_symlinks=False)


class UnfinishedFile:
    """A chunk that is being written, in a temporary file next to its final path.

    It has its full size from the start, so that a scan counts it. Its writer holds a lock on it.
    `publish` or `discard` ends it.
    """

    def __init__(self, root: Path, entry: Entry, num_bytes: int) -> None:
        """The caller must hold the lock of the directory."""
        self._name = entry.name + paths.FILE_ENDING
        self._temp = f".{entry.name}.{os.getpid()}.{secrets.token_hex(8)}{_TEMP_ENDING}"
        self._directory = paths.make_directory(root, entry)
        self._is_open = True
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self._descriptor = os.open(self._temp, flags, 0o600, dir_fd=self._directory)
        except BaseException:
            os.close(self._directory)
            raise
        try:
            with suppress(OSError):  # not every file system has locks
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._descriptor, num_bytes)
        except BaseException:
            self.discard()
            raise

    def write(self, parts: Sequence[Buffer]) -> None:
        """Write the whole chunk. Nothing is synced: after a power loss, the checksum is wrong."""
        direct_io.write(self._descriptor, parts)

    def publish(self) -> None:
        """Rename the file to its final name."""
        directory = self._directory
        os.rename(self._temp, self._name, src_dir_fd=directory, dst_dir_fd=directory)
        self._close()

    def discard(self) -> None:
        """Remove the file. Idempotent."""
        if self._is_open:
            with suppress(OSError):
                os.unlink(self._temp, dir_fd=self._directory)
            self._close()

    def _close(self) -> None:
        self._is_open = False
        try:
            os.close(self._descriptor)
        finally:
            os.close(self._directory)


def _files(root: Path) -> Iterator[tuple[str, str, os.DirEntry[str]]]:
    """Yield folder, prefix and entry of every file in chunk directories."""
    for folder in _directories(root):
        if not paths.is_folder_name(folder.name):
            continue
        for prefix in _directories(folder.path):
            if paths.is_prefix_name(prefix.name):
                for file in _children(prefix.path):
                    yield folder.name, prefix.name, file


def _directories(path: str | Path) -> Iterator[os.DirEntry[str]]:
    for child in _children(path):
        with suppress(OSError):
            if child.is_dir(follow_symlinks=False):
                yield child


def _children(path: str | Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as children:
            return list(children)
    except OSError:
        return []


def _own_file(file: os.DirEntry[str]) -> os.stat_result | None:
    try:
        info = file.stat(follow_symlinks=False)
    except OSError:
        return None
    return info if paths.is_own_file(info) else None


def _size_in(directory: int, entry: Entry) -> int:
    info = os.stat(entry.name + paths.FILE_ENDING, dir_fd=directory, follow_symlinks=False)
    if not paths.is_own_file(info):
        raise paths.NotOursError
    return info.st_size


def _remove_if_abandoned(directory: int, name: str) -> int:
    """Remove an unfinished file if its writer died, which released its lock. Returns the bytes of a
    file that stays."""
    info = os.stat(name, dir_fd=directory, follow_symlinks=False)
    if not paths.is_own_file(info):
        return 0
    descriptor = paths.open_file(directory, name, os.O_WRONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return info.st_size
    except OSError:  # the file system has no locks
        if info.st_mtime > time.time() - _ABANDONED_S:
            return info.st_size
    finally:
        os.close(descriptor)
    os.unlink(name, dir_fd=directory)
    return 0
