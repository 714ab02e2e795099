"""State shared by all processes that use a directory of chunks: a lock, and the bytes in it.

The file `ledger` in the directory has 16 bytes: the total bytes of all chunks and unfinished files,
and the number of changes of that total. A process holds the lock, adds the bytes of a file before
it creates it, and subtracts them after it removed it. So the total is never too small when a
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
    """The open ledger of a directory. Valid while the lock is held."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        found = os.pread(descriptor, _FORMAT.size + 1, 0)
        is_valid = len(found) == _FORMAT.size
        self._num_bytes: int
        self.changes: int
        self._num_bytes, self.changes = _FORMAT.unpack(found) if is_valid else (0, 0)
        self.is_counted = is_valid
        """False: the total was not written yet."""

    @property
    def num_bytes(self) -> int:
        """Bytes of all files of the directory; 0 if they were not counted."""
        return self._num_bytes

    def add(self, num_bytes: int) -> None:
        """Add `num_bytes`, which may be negative, to the total. Does nothing if it was not
        counted."""
        if self.is_counted:
            self.set(max(0, self._num_bytes + num_bytes))

    def set(self, num_bytes: int) -> None:
        """Write the total to the file."""
        self._num_bytes, self.changes = num_bytes, (self.changes + 1) % 2**64
        if not self.is_counted:
            os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, _FORMAT.pack(self._num_bytes, self.changes), 0)
        self.is_counted = True


@contextmanager
def locked(root: Path) -> Iterator[Ledger]:
    """Lock a directory, which is created if missing.

    Raises OSError, and TimeoutError after 10 seconds.
    """
    descriptor = _open(root)
    try:
        _lock(descriptor, root)
        try:
            yield Ledger(descriptor)
        finally:  # closing is not enough if a child process was forked meanwhile
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def changes_of(root: Path) -> int:
    """Read the number of changes of the ledger without the lock. 0: the ledger is missing."""
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
    """Poll for the lock with a timeout: a stopped process may hold it for ever."""
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
