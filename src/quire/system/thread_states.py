"""States of the threads of a process, from /proc, used to watch an engine; and their priority."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_STAT_BYTES = 4096
"""More than the 52 numbers and the name of one thread need."""


@dataclass(frozen=True, slots=True)
class ThreadState:
    """One thread at one moment."""

    name: str
    state: str
    """`R` running or waiting for a core, `S` asleep, `D` waiting for a disk, `T` stopped, ..."""
    cpu_s: float
    """Processor time used, in steps of 10 ms."""

    @property
    def is_asleep(self) -> bool:
        """Whether it waits for something other than a core or the disk."""
        return self.state not in {"R", "D"}

    @property
    def is_stopped(self) -> bool:
        """Whether a signal or a debugger has stopped it."""
        return self.state in {"T", "t"}


def thread_states(pid: int | str, only: Collection[int] | None = None) -> dict[int, ThreadState]:
    """States by thread id, of all threads or `only` of these; pid `self` is this process.

    Threads that have ended are left out; the result is empty if the process has ended, or without
    /proc. While another thread computes in Python, every system call here may wait 5 ms for the
    interpreter, so callers should ask for few threads.
    """
    found: dict[int, ThreadState] = {}
    with suppress(OSError):
        for tid in os.listdir(f"/proc/{pid}/task") if only is None else only:
            with suppress(OSError):
                found[int(tid)] = _parse(_read(f"/proc/{pid}/task/{tid}/stat"))
    return found


def is_stopped(pid: int) -> bool:
    """Whether a signal or a debugger has stopped a process."""
    return any(state.is_stopped for state in thread_states(pid, only=(pid,)).values())


def _read(path: str) -> str:
    """Reads a file of /proc, with fewer system calls than `open`."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, _STAT_BYTES).decode("latin-1")
    finally:
        os.close(fd)


def _parse(line: str) -> ThreadState:
    """Source: proc_pid_stat(5). The name, in parentheses, may contain any characters."""
    head, _, tail = line.rpartition(")")
    fields = tail.split()
    cpu_ticks = int(fields[11]) + int(fields[12])
    return ThreadState(head.partition("(")[2], fields[0], cpu_ticks / _TICKS_PER_S)


def be_nice(niceness: int) -> None:
    """Let this thread run less often than others that need the same core. Only Linux has a niceness
    of threads; elsewhere it would be that of the process, and this does nothing."""
    if niceness and hasattr(os, "sched_getaffinity"):
        thread = threading.get_native_id()
        now = os.getpriority(os.PRIO_PROCESS, thread)
        os.setpriority(os.PRIO_PROCESS, thread, min(now + niceness, 19))
