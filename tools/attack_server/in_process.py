"""Attacks on engines within a program, without a server: the long tests of these families."""

from __future__ import annotations

import subprocess
import sys

IN_PROCESS = {
    "dropped engines": "tests/unit/llm/test_dropped.py",
    "signals at random moments": "tests/unit/llm/test_signals.py",
    "numbers of random grammars": "tests/unit/structured/test_numbers.py",
}
_LAST_LINES = 30


def attack_in_process(name: str) -> str:
    """pytest's last line, or more if a test has failed."""
    bounds = ["-o", "timeout=3600", "-o", "faulthandler_timeout=0"]  # for slow machines
    command = [sys.executable, "-m", "pytest", "-q", "-m", "long", *bounds, IN_PROCESS[name]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    return "\n".join(lines[-_LAST_LINES if done.returncode else -1 :])
