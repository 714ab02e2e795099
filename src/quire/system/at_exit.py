"""`close_at_exit`: closes open objects when the interpreter ends, while their threads still run.
`in_forked_child`: what an object does in a child that was forked from its process.
`make_scratch`: directories that exist while this process, or a part of it, runs."""

from __future__ import annotations

import atexit
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
_made: set[str] = set()
"""Directories of `make_scratch`."""


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


atexit.register(_close_all)
os.register_at_fork(after_in_child=_after_fork)
