"""`close_at_exit`: closes open objects when the interpreter ends, while their threads still run."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

Owner = TypeVar("Owner")

_open: WeakKeyDictionary[Any, tuple[int, Callable[[Any], object]]] = WeakKeyDictionary()
"""For each owner, the process that created it and the function that closes it."""


def close_at_exit(owner: Owner, close: Callable[[Owner], object]) -> None:
    """Calls `close(owner)` at the end of this process if the owner still exists. Holds only a weak
    reference to it. A forked child, which has none of its threads, does not close it."""
    _open[owner] = (os.getpid(), close)


def _close_all() -> None:
    for owner, (pid, close) in list(_open.items()):
        if pid == os.getpid():
            with suppress(Exception):
                close(owner)


atexit.register(_close_all)
