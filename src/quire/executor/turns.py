"""`Turns`: lets the engines of several processes compute one after the other."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

_QUEUE, _TURN = "queue", "turn"


class Turns:
    """One process's part in the turns of all that name the same directory.

    The processes of a server with several models each compute with all cores. Two steps at once
    would take twice as long each, so a step waits for its turn. Made of two file locks, which the
    kernel releases when a process ends.
    A context manager: the body runs while no other process is in its own. Who waits for the turn
    holds the queue, so a process that has had its turn cannot take the next one before it.
    One thread at a time.
    """

    def __init__(self, directory: str | Path) -> None:
        """`directory` must exist; files for the locks are created in it."""
        self.is_waiting = False
        """Whether another process has the turn that this one waits for. Any thread may read it."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._queue, self._turn = (
            os.open(Path(directory) / name, flags, 0o600) for name in (_QUEUE, _TURN)
        )

    def __enter__(self) -> None:
        self.is_waiting = True
        try:
            fcntl.flock(self._queue, fcntl.LOCK_EX)
            try:
                fcntl.flock(self._turn, fcntl.LOCK_EX)
            finally:
                fcntl.flock(self._queue, fcntl.LOCK_UN)
        finally:
            self.is_waiting = False

    def __exit__(self, *raised: object) -> None:
        fcntl.flock(self._turn, fcntl.LOCK_UN)

    def close(self) -> None:
        """Gives up the locks. Idempotent."""
        for fd in (self._queue, self._turn):
            if fd >= 0:
                os.close(fd)
        self._queue = self._turn = -1
