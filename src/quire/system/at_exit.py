"""`close_at_exit`: closes open objects when the interpreter ends, while their threads still run.
`in_forked_child`: what an object does in a child that was forked from its process.
`make_scratch`: directories that exist while this process, or a part of it, runs."""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

Owner = TypeVar("Owner")

FORKED = (
    "the engine belongs to the process that created it, and this process was forked from that one: "
    "create an engine here"
)
"""Why an engine that has threads or processes of its own cannot be used in a forked child."""

_open: WeakKeyDictionary[Any, tuple[int, Callable[[Any], object]]] = WeakKeyDictionary()
"""For each owner, the process that created it and the function that closes it."""
_copied: WeakKeyDictionary[Any, Callable[[Any], object]] = WeakKeyDictionary()
"""For each owner, what is called in a forked child."""
_PREFIX = "quire-scratch-"
_made: dict[str, int] = {}
"""Directories of `make_scratch`, and the open file by which each is locked."""


def close_at_exit(owner: Owner, close: Callable[[Owner], object]) -> None:
    """Calls `close(owner)` at the end of this process if the owner still exists. Holds only a weak
    reference to it. A forked child, which has none of its threads, does not close it."""
    _open[owner] = (os.getpid(), close)


def in_forked_child(owner: Owner, call: Callable[[Owner], object]) -> None:
    """Calls `call(owner)` in each child that is forked while the owner exists, before anything else
    runs there. Holds only a weak reference to the owner."""
    _copied[owner] = call


def _after_fork() -> None:
    for owner, call in list(_copied.items()):
        call(owner)


def _close_all() -> None:
    for owner, (pid, close) in list(_open.items()):
        if pid == os.getpid():
            with suppress(Exception):
                close(owner)


def make_scratch(parent: str | None = None) -> str:
    """Creates an empty directory that only its owner may read, in `parent` or where temporary
    files are. Those that processes of this user have left there, because they were killed, are
    removed: no process has them locked. Raises OSError."""
    parent = parent or tempfile.gettempdir()
    _remove_left(parent)
    while True:
        directory = tempfile.mkdtemp(prefix=_PREFIX, dir=parent)
        with suppress(FileNotFoundError):  # another process took it for one that was left
            lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
            if _is_ours(directory, lock):
                _made[directory] = lock
                return directory
            os.close(lock)


def _is_ours(directory: str, lock: int) -> bool:
    """Locks a new directory. False: another process removes it, or has."""
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # nothing can be locked here, so nothing is removed either
        pass
    return os.path.isdir(directory)


def _remove_left(parent: str) -> None:
    with suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX):
                with suppress(OSError):
                    _remove_unlocked(entry.path)


def _remove_unlocked(directory: str) -> None:
    lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(lock).st_uid == os.geteuid():
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(directory)
    finally:
        os.close(lock)


def remove_scratch(directory: str) -> None:
    """Removes a directory of `make_scratch` with its files. Idempotent."""
    shutil.rmtree(directory, ignore_errors=True)
    lock = _made.pop(directory, None)
    if lock is not None:
        os.close(lock)


def remove_all_scratch() -> None:
    """Removes all directories of `make_scratch`. For a process that ends without waiting for those
    who made them."""
    for directory in list(_made):
        remove_scratch(directory)


atexit.register(_close_all)
os.register_at_fork(after_in_child=_after_fork)
