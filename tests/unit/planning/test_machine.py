"""Memory that is there: the machine's, and what cgroups leave of it."""

from __future__ import annotations

from pathlib import Path

from quire.planning.machine import available_memory
from quire.units import MiB


def fake_root(path: Path, files: dict[str, str]) -> Path:
    for name, text in {"proc/meminfo": "MemAvailable:  1000 kB\n", **files}.items():
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return path


def test_the_machine_alone(tmp_path: Path) -> None:
    assert available_memory(fake_root(tmp_path, {})).available_bytes == 1000 * 1024


def test_a_cgroup_v2_limit_counts_without_its_file_cache(tmp_path: Path) -> None:
    own = "sys/fs/cgroup/a/b"
    files = {
        "proc/self/cgroup": "0::/a/b\n",
        f"{own}/memory.max": "max\n",
        f"{own}/memory.current": "5\n",
        "sys/fs/cgroup/a/memory.max": "700000\n",
        "sys/fs/cgroup/a/memory.current": "300000\n",
        "sys/fs/cgroup/a/memory.stat": "anon 200000\ninactive_file 60000\nactive_file 40000\n",
    }
    found = available_memory(fake_root(tmp_path, files))
    assert found.available_bytes == 700000 - (300000 - 100000)
    assert "cgroup" in found.source


def test_a_cgroup_v1_limit_seen_from_inside_the_container(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "3:cpu,memory:/docker/abc\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "400000\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "100000\n",
        "sys/fs/cgroup/memory/memory.stat": "total_inactive_file 50000\n",
    }
    assert available_memory(fake_root(tmp_path, files)).available_bytes == 350000


def test_no_limit_in_cgroup_v1_is_no_limit(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "3:memory:/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "100000\n",
    }
    assert available_memory(fake_root(tmp_path, files)).source == "this machine"


def test_this_machine_has_memory() -> None:
    assert available_memory().available_bytes > 64 * MiB
