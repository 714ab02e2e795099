"""Where a chunk's file is, and how its directory is opened without following a symbolic link.

`<root>/<folder>/<first two digits of the name>/<name>.kv`. Directories are for their owner alone
(0700), and so are files (0600): K/V tells what was in a prompt. What belongs to another user is
not there.
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
    """A link, another user's file or directory, or a directory into which others may write."""


MISSING = (FileNotFoundError, NotADirectoryError, NotOursError)
"""Errors that mean that there is no such chunk."""


@contextmanager
def tier_errors(root: Path, done: str) -> Iterator[None]:
    """Tells an OSError as a TierError that names the directory and what could not be done."""
    try:
        yield
    except OSError as error:
        raise TierError(f"chunks in {root} cannot be {done}: {reason(error)}") from error


def path_of(root: Path, entry: Entry) -> Path:
    """For messages and tools; the functions here open it step by step."""
    return root / entry.folder / entry.name[:2] / f"{entry.name}{FILE_ENDING}"


def is_folder_name(name: str) -> bool:
    return _FOLDER.fullmatch(name) is not None


def is_prefix_name(name: str) -> bool:
    return _PREFIX.fullmatch(name) is not None


def chunk_name(file_name: str, prefix: str) -> str | None:
    """The name of the chunk in a file of the directory `prefix`; None: it is no chunk file."""
    name = file_name.removesuffix(FILE_ENDING)
    is_chunk = name != file_name and name[:2] == prefix and _NAME.fullmatch(name)
    return name if is_chunk else None


@contextmanager
def directory_of(root: Path, entry: Entry) -> Iterator[int]:
    """Opens the directory of a chunk: a descriptor. Raises OSError: one of `MISSING`, mostly."""
    descriptor = _open_root(root)
    try:
        for name in (entry.folder, entry.name[:2]):
            descriptor = _enter(descriptor, name)
        yield descriptor
    finally:
        os.close(descriptor)


def make_directory(root: Path, entry: Entry) -> int:
    """The same, and makes what is not there. The caller closes it. Raises OSError."""
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
    """Opens a file, unless it is a link. Raises OSError."""
    return _open(directory, name, flags | os.O_NONBLOCK)


def is_own_file(info: os.stat_result) -> bool:
    return stat.S_ISREG(info.st_mode) and info.st_uid == os.geteuid()


def _open_root(root: Path) -> int:
    """The root is what the user named, and may be a link."""
    return os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _enter(directory: int, name: str) -> int:
    """Opens a directory in `directory`, which is closed then."""
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
        os.chmod(name, 0o700, dir_fd=directory)  # whatever the umask is


def _open(directory: int, name: str, flags: int) -> int:
    try:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link, a socket
            raise NotOursError(error.errno, error.strerror, name) from None
        raise
