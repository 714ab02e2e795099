"""`available_memory`: how much memory this process may still use.

Called when an engine is planned, and by `quire doctor`. Reads only /proc and the cgroup files. A
container's limit counts as much as the machine's.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from quire.config.memory import AvailableMemory


def available_memory(root: Path = Path("/")) -> AvailableMemory:
    """Return the smallest amount that the machine and every enclosing cgroup have left.

    Memory of file caches counts as available, because the kernel frees it on demand.
    """
    found = [AvailableMemory(_meminfo_available(root), "this machine")]
    found += _cgroup_v2(root)
    found += _cgroup_v1(root)
    return min(found, key=lambda memory: memory.available_bytes)


def _meminfo_available(root: Path) -> int:
    values = {}
    for line in (root / "proc/meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        values[name] = int(rest.split()[0]) * 1024
    return values.get("MemAvailable", values.get("MemFree", 0))


def _cgroup_v2(root: Path) -> Iterator[AvailableMemory]:
    mount = root / "sys/fs/cgroup"
    for directory in _own_and_above(mount, _own_cgroup(root, "")):
        limit = _read_number(directory / "memory.max")
        used = _read_number(directory / "memory.current")
        if limit is not None and used is not None:
            cache = _read_stat(directory / "memory.stat", ("inactive_file", "active_file"))
            yield AvailableMemory(max(0, limit - max(0, used - cache)), "the cgroup's limit")


def _cgroup_v1(root: Path) -> Iterator[AvailableMemory]:
    mount = root / "sys/fs/cgroup/memory"
    for directory in _own_and_above(mount, _own_cgroup(root, "memory")):
        limit = _read_number(directory / "memory.limit_in_bytes")
        used = _read_number(directory / "memory.usage_in_bytes")
        if limit is not None and used is not None and limit < 1 << 60:
            names = ("total_inactive_file", "total_active_file")
            cache = _read_stat(directory / "memory.stat", names)
            yield AvailableMemory(max(0, limit - max(0, used - cache)), "the cgroup's limit")


def _own_cgroup(root: Path, controller: str) -> str:
    """Return this process's cgroup path below the mount. For v2, `controller` is empty."""
    file = root / "proc/self/cgroup"
    if not file.is_file():
        return ""
    for line in file.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(",") and (controller or not controllers):
            return path.strip("/")
    return ""


def _own_and_above(mount: Path, path: str) -> Iterator[Path]:
    """Yield the directory of a cgroup and its parents. Inside a container the path may not exist,
    because it is relative to the host; then only the mount is of use."""
    directory = mount / path
    while directory != mount and mount in directory.parents:
        yield directory
        directory = directory.parent
    yield mount


def _read_number(file: Path) -> int | None:
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _read_stat(file: Path, names: tuple[str, ...]) -> int:
    try:
        rows = [line.split() for line in file.read_text().splitlines()]
    except OSError:
        return 0
    return sum(int(row[1]) for row in rows if len(row) == 2 and row[0] in names)
