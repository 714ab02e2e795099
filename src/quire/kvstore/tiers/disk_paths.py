"""Paths of chunk files, and functions that open directories without following symbolic links.

A chunk is `<root>/<folder>/<first two digits of the name>/<name>.kv`. Only the owner can access
directories (0700) and files (0600), because K/V reveals what was in a prompt. Files of other users
are treated as missing.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from quire.errors import reason
from quire.kvstore.eviction import Entry
from quire.kvstore.tiers.base import TierError

FILE_ENDING = ".kv"
_FOLDER = re.compile(r"[0-9a-f]{32}")
_PREFIX = re.compile(r"[0-9a-f]{2}")
_NAME = re.compile(r"[0-9a-f]{64}-(0|[1-9][0-9]{0,5})")


class NotOursError(OSError):
    """The path is a link, belongs to another user, or is a directory that others can write."""


MISSING = (FileNotFoundError, NotADirectoryError, NotOursError)
"""Errors that mean that the chunk does not exist."""


@contextmanager
def tier_errors(root: Path, done: str) -> Iterator[None]:
    """Convert an OSError to a TierError that names the directory and the failed operation."""
    try:
        yield
    except OSError as error:
        raise TierError(f"chunks in {root} cannot be {done}: {reason(error)}") from error


def is_folder_name(name: str) -> bool:
    return _FOLDER.fullmatch(name) is not None


def is_prefix_name(name: str) -> bool:
    return _PREFIX.fullmatch(name) is not None


def chunk_name(file_name: str, prefix: str) -> str | None:
    """Return the chunk's name if `file_name` in the directory `prefix` is a chunk file, else
    None."""
    name = file_name.removesuffix(FILE_ENDING)
    is_chunk = name != file_name and name[:2] == prefix and _NAME.fullmatch(name)
    return name if is_chunk else None


@contextmanager
def directory_of(root: Path, entry: Entry) -> Iterator[int]:
    """Open the directory of a chunk and yield its descriptor. Raises OSError, usually one of
    `MISSING`."""
    descriptor = _open_root(root)
    try:
        for name in (entry.folder, entry.name[:2]):
            descriptor = _enter(descriptor, name)
        yield descriptor
    finally:
        os.close(descriptor)


def make_directory(root: Path, entry: Entry) -> int:
    """Open the directory of an entry, after creating missing directories. The caller closes it.
    Raises OSError."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = _open_root(root)
    try:
        for name in (entry.folder, entry.name[:2]):
            try:
                descriptor = _enter(descriptor, name)
            except FileNotFoundError:
                _make(descriptor, name)
                descriptor = _enter(descriptor, name)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_file(directory: int, name: str, flags: int = os.O_RDONLY) -> int:
    """Open a file unless it is a symbolic link. Raises OSError."""
    return _open(directory, name, flags | os.O_NONBLOCK)


def is_own_file(info: os.stat_result) -> bool:
    return stat.S_ISREG(info.st_mode) and info.st_uid == os.geteuid()


def _open_root(root: Path) -> int:
    """Open the root. It may be a symbolic link, because the operator named it."""
    return os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _enter(directory: int, name: str) -> int:
    """Open a subdirectory, then close `directory`."""
    descriptor = _open(directory, name, os.O_RDONLY | os.O_DIRECTORY)
    info = os.fstat(descriptor)
    if info.st_uid != os.geteuid() or info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        os.close(descriptor)
        raise NotOursError(
            errno.EPERM, "it belongs to another user, or others may write into it", name
        )
    os.close(directory)
    return descriptor


def _make(directory: int, name: str) -> None:
    try:
        os.mkdir(name, 0o700, dir_fd=directory)
    except FileExistsError:
        pass  # another process was first
    else:
        os.chmod(name, 0o700, dir_fd=directory)  # independent of the umask


def _open(directory: int, name: str, flags: int) -> int:
    try:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link, a socket
            raise NotOursError(error.errno, error.strerror, name) from None
        raise
