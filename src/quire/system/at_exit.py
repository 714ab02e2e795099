"""`close_at_exit`: what is still open when the interpreter ends is closed while its threads run."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

Owner = TypeVar("Owner")

_open: WeakKeyDictionary[Any, tuple[int, Callable[[Any], object]]] = WeakKeyDictionary()
"""Which process made each, and what closes it."""


def close_at_exit(owner: Owner, close: Callable[[Owner], object]) -> None:
    """Calls `close(owner)` at the end of this process if the owner still lives. It is not kept
    alive for that. A forked child, which has none of its threads, closes nothing."""
    _open[owner] = (os.getpid(), close)


def _close_all() -> None:
    for owner, (pid, close) in list(_open.items()):
        if pid == os.getpid():
            with suppress(Exception):
                close(owner)


atexit.register(_close_all)
