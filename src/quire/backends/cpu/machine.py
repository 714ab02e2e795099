"""The threads and instruction-set tiers that this machine offers the CPU backend.

Called when an engine is configured, and by `quire doctor`.
"""

from __future__ import annotations

import math
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from quire import env
from quire.backends.cpu.library import built_tiers, load, runnable_tiers
from quire.errors import ConfigError, QuireError

_WORTH_A_THREAD = 0.25
"""Fraction of a CPU in a quota that is worth one more thread."""


@dataclass(frozen=True, slots=True)
class CpuReport:
    """A summary for people: the tiers and threads available and chosen."""

    built_isas: tuple[str, ...]
    """The tiers of this installation."""
    runnable_isas: tuple[str, ...]
    """The tiers that this processor can run, installed or not."""
    isa: str | None
    """The tier that an engine would use; None if the library does not load."""
    problem: str | None
    """Why the library does not load or the number of threads is invalid; None: no problem."""
    num_threads: int
    quota_cpus: float | None
    """The cgroup's limit in CPUs; None: unlimited."""


def cpu_report() -> CpuReport:
    """Return a report of the machine and the environment. Never raises."""
    runnable: tuple[str, ...] = ()
    isa = problem = None
    try:
        runnable = runnable_tiers()
        isa = load(env.forced_isa()).isa
    except QuireError as error:
        problem = str(error)
    try:
        num_threads = default_num_threads()
    except ConfigError as error:
        problem, num_threads = str(error), 1
    return CpuReport(built_tiers(), runnable, isa, problem, num_threads, cgroup_quota_cpus())


def default_num_threads() -> int:
    """Return `QUIRE_THREADS`, or the number that affinity and the cgroup's quota allow, at least 1.

    vLLM's variables name the cores, or the number of cores to leave to other processes. A fraction
    of a CPU counts as a thread if it is at least `_WORTH_A_THREAD`: at a quota of 1.5, two threads
    generate 1.4 times as fast as one; at 1.1 they are not faster, and their speed varies more.
    """
    forced = env.forced_threads()
    if forced is not None:
        return forced
    cores, quota = env.compute_cores(), cgroup_quota_cpus()
    count = len(cores) if cores is not None else allowed_cpus() - env.reserved_cores()
    if quota is not None:
        count = min(count, math.floor(quota + 1 - _WORTH_A_THREAD))
    return max(1, count)


def allowed_cpus() -> int:
    """CPUs in this process's affinity mask."""
    return len(os.sched_getaffinity(0))


def cgroup_quota_cpus(
    root: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc")
) -> float | None:
    """The smallest CPU quota of the process's cgroup and its ancestors; None if unlimited."""
    quotas = []
    for directory in _cgroup_directories(root, proc):
        with suppress(OSError, ValueError, ZeroDivisionError):
            quota = _quota(directory)
            if quota is not None:
                quotas.append(quota)
    return min(quotas, default=None)


def _cgroup_directories(root: Path, proc: Path) -> list[Path]:
    """This process's directories in the v2 and the v1 cpu hierarchy, with all parents."""
    try:
        lines = (proc / "self" / "cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    found = [root, root / "cpu"]
    for line in lines:
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = root / "cpu" if controllers else root
        relative = Path(path.lstrip("/"))
        if ".." in relative.parts:
            continue
        found.extend(top / part for part in (relative, *relative.parents))
    return list(dict.fromkeys(found))


def _quota(directory: Path) -> float | None:
    modern = directory / "cpu.max"
    if modern.is_file():
        quota, period = modern.read_text(encoding="utf-8").split()
        return None if quota == "max" else int(quota) / int(period)
    legacy = directory / "cpu.cfs_quota_us"
    if not legacy.is_file():
        return None
    quota_us = int(legacy.read_text(encoding="utf-8"))
    period_us = int((directory / "cpu.cfs_period_us").read_text(encoding="utf-8"))
    return None if quota_us <= 0 else quota_us / period_us
