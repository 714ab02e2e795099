"""Looking at processes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def command_line(pid: int) -> str:
    """How it was started; empty once it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def children_of(pid: int) -> list[int]:
    """Its children."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += map(int, (task / "children").read_text().split())
    return found


def resident_mib(pid: int) -> float:
    """Its memory in use."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def is_alive(pid: int) -> bool:
    """Whether there is such a process, and it is more than an unread exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


def proportional_mib(pids: Iterable[int]) -> float:
    """Their memory in use together; what several processes share counts once (PSS)."""
    kib = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            kib += int(line.split()[1]) if line.startswith("Pss:") else 0
    return kib / 1024
