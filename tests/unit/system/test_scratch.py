"""Directories that exist while a process runs."""

from __future__ import annotations

import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from quire.system.at_exit import make_scratch, remove_scratch

HOLD = (
    "import sys, time; from quire.system.at_exit import make_scratch; "
    "print(make_scratch(sys.argv[1]), flush=True); time.sleep(600)"
)


def test_what_a_killed_process_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    other = tmp_path / "quire-scratchpad"
    other.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        held = Path(process.stdout.readline().strip())
        (held / "turn").touch()
        own = Path(make_scratch(str(tmp_path)))
        assert held.is_dir()
        process.send_signal(signal.SIGKILL)
    assert held.is_dir()
    second = Path(make_scratch(str(tmp_path)))
    assert sorted(tmp_path.iterdir()) == sorted([other, own, second])
    for directory in (own, second):
        remove_scratch(str(directory))
    remove_scratch(str(own))
    assert [*tmp_path.iterdir()] == [other]


def test_processes_that_begin_together_keep_their_directories(tmp_path: Path) -> None:
    code = (
        "import os, sys; from quire.system.at_exit import make_scratch, remove_scratch\n"
        "for _ in range(200):\n"
        "    made = make_scratch(sys.argv[1]); open(made + '/a', 'w').close(); remove_scratch(made)"
    )

    def run(_: int) -> int:
        return subprocess.run([sys.executable, "-c", code, str(tmp_path)]).returncode

    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(run, range(4))] == [0] * 4
    assert not [*tmp_path.iterdir()]
