"""What all processes that share a directory of chunks agree on: a lock, and the bytes in it.

The file `ledger` in the directory has 16 bytes: the bytes of all chunks and unfinished files, and
how often that number was changed. Whoever adds a file adds its bytes first, and whoever removes
one subtracts them afterwards, with the lock held. So the number is never too small, whenever a
process dies, and a scan under the lock makes it exact again.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LEDGER_NAME = "ledger"
_FORMAT = struct.Struct("<QQ")
_LOCK_TIMEOUT_S = 10.0
"""A scan of 100,000 files under the lock takes about a second."""


class Ledger:
    """The open ledger of a directory, while the lock is held."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        found = os.pread(descriptor, _FORMAT.size + 1, 0)
        is_valid = len(found) == _FORMAT.size
        self._num_bytes: int
        self.changes: int
        self._num_bytes, self.changes = _FORMAT.unpack(found) if is_valid else (0, 0)
        self.is_counted = is_valid
        """False: nobody has written what the directory holds."""

    @property
    def num_bytes(self) -> int:
        """Bytes of all files of the directory; 0 if they are not counted."""
        return self._num_bytes

    def add(self, num_bytes: int) -> None:
        """Takes more (or, negative, fewer) bytes into account, unless all have to be counted."""
        if self.is_counted:
            self.set(max(0, self._num_bytes + num_bytes))

    def set(self, num_bytes: int) -> None:
        """Writes what was counted, at once."""
        self._num_bytes, self.changes = num_bytes, (self.changes + 1) % 2**64
        if not self.is_counted:
            os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, _FORMAT.pack(self._num_bytes, self.changes), 0)
        self.is_counted = True


@contextmanager
def locked(root: Path) -> Iterator[Ledger]:
    """Takes the lock of a directory, which is made if it is not there.

    Raises OSError, and TimeoutError after 10 seconds.
    """
    descriptor = _open(root)
    try:
        _lock(descriptor, root)
        try:
            yield Ledger(descriptor)
        finally:  # closing is not enough where a child process was forked meanwhile
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def changes_of(root: Path) -> int:
    """How often the ledger was changed, read without the lock. 0: there is none."""
    try:
        descriptor = os.open(root / LEDGER_NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0
    try:
        found = os.pread(descriptor, _FORMAT.size, 0)
    finally:
        os.close(descriptor)
    return int(_FORMAT.unpack(found)[1]) if len(found) == _FORMAT.size else 0


def _open(root: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(root / LEDGER_NAME, flags, 0o600)
    except FileNotFoundError:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(root / LEDGER_NAME, flags, 0o600)


def _lock(descriptor: int, root: Path) -> None:
    """Does not wait in the kernel: a process that was stopped may hold the lock for ever."""
    deadline = time.monotonic() + _LOCK_TIMEOUT_S
    pause = 0.001
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise TimeoutError(f"another process holds the lock of {root}") from None
            time.sleep(pause)
            pause = min(2 * pause, 0.05)
        else:
            return
