"""What the threads of a process are doing, from /proc. Used to watch an engine."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_STAT_BYTES = 4096
"""More than the 52 numbers and the name of one thread can take."""


@dataclass(frozen=True, slots=True)
class ThreadState:
    """One thread at one moment."""

    name: str
    state: str
    """`R` running or waiting for a core, `S` asleep, `D` waiting for a disk, `T` stopped, ..."""
    cpu_s: float
    """Processor time that it has used, in steps of 10 ms."""

    @property
    def is_asleep(self) -> bool:
        """Whether it neither computes, nor would if it were given a core or its pages."""
        return self.state not in {"R", "D"}

    @property
    def is_stopped(self) -> bool:
        """Whether a signal or a debugger has stopped it."""
        return self.state in {"T", "t"}


def thread_states(pid: int | str, only: Collection[int] | None = None) -> dict[int, ThreadState]:
    """By thread id, of all threads or `only` of these; `self` is this process.

    Without those that are gone; empty if the process is, or without /proc. Beside a thread that
    computes in Python every system call here may wait 5 ms for the interpreter: ask for few.
    """
    found: dict[int, ThreadState] = {}
    with suppress(OSError):
        for tid in os.listdir(f"/proc/{pid}/task") if only is None else only:
            with suppress(OSError):
                found[int(tid)] = _parse(_read(f"/proc/{pid}/task/{tid}/stat"))
    return found


def _read(path: str) -> str:
    """A file of /proc, with fewer system calls than `open` makes."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, _STAT_BYTES).decode("latin-1")
    finally:
        os.close(fd)


def _parse(line: str) -> ThreadState:
    """Source: proc_pid_stat(5). The name, in parentheses, may hold anything."""
    head, _, tail = line.rpartition(")")
    fields = tail.split()
    cpu_ticks = int(fields[11]) + int(fields[12])
    return ThreadState(head.partition("(")[2], fields[0], cpu_ticks / _TICKS_PER_S)
