"""What the threads of a process are doing, as Linux tells it. Read by whoever watches an engine."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


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


def thread_states(pid: int | str) -> dict[int, ThreadState]:
    """By thread id; `self` is this process. Empty if it is gone, or without /proc."""
    found: dict[int, ThreadState] = {}
    with suppress(OSError):
        for tid in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError), open(f"/proc/{pid}/task/{tid}/stat", encoding="latin-1") as f:
                found[int(tid)] = _parse(f.read())
    return found


def _parse(line: str) -> ThreadState:
    """Source: proc_pid_stat(5). The name, in parentheses, may hold anything."""
    head, _, tail = line.rpartition(")")
    fields = tail.split()
    cpu_ticks = int(fields[11]) + int(fields[12])
    return ThreadState(head.partition("(")[2], fields[0], cpu_ticks / _TICKS_PER_S)
