"""Looking at processes."""

from __future__ import annotations

from pathlib import Path


def is_alive(pid: int) -> bool:
    """Whether there is such a process, and it is more than an unread exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False
