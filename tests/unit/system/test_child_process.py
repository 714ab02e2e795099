"""Children that end, and those that are given up."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from quire.system.child_process import wait_or_kill

SLEEPS = "import time; print(flush=True); time.sleep(600)"


@pytest.mark.parametrize(
    ("program", "number", "timeout_s", "problem", "code"),
    [
        ("print()", None, 60.0, None, 0),
        (SLEEPS, signal.SIGTERM, 60.0, None, -signal.SIGTERM),
        (SLEEPS, signal.SIGSTOP, 60.0, "was stopped by a signal (SIGSTOP)", -signal.SIGKILL),
        (SLEEPS, None, 0.0, "did not end in 0 s", -signal.SIGKILL),
    ],
    ids=["ends", "is ended", "is stopped", "stays"],
)
def test_how_a_child_ends(
    program: str, number: int | None, timeout_s: float, problem: str | None, code: int
) -> None:
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        if number is not None:
            child.send_signal(number)
        assert wait_or_kill(child, timeout_s) == problem
        assert child.returncode == code
