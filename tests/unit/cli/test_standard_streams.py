"""Standard streams that are closed, full, or have no reader: no traceback, and no harm."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

COMMANDS = {
    "--version": 0,
    "doctor": 0,
    "run --help": 0,
    "frobnicate": 2,
    "run --max-model-len -7 demo hello": 1,
}
"""With the exit codes that they have when all is well."""

REDIRECTIONS = {
    "nobody reads it": "| true",
    "stdout is full": ">/dev/full",
    "stdout is closed": ">&-",
    "stdin is closed": "<&-",
    "stderr is closed": "2>&-",
    "all are closed": "<&- >&- 2>&-",
}


def run(command: str, redirection: str, options: str = "") -> subprocess.CompletedProcess[str]:
    line = f'{{ "{sys.executable}" {options} -m quire {command}; echo code $? >&9; }} {redirection}'
    read_end, write_end = os.pipe()
    try:
        ended = subprocess.run(
            ["bash", "-c", f"exec 9>&{write_end}; {line}"],
            pass_fds=[write_end],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=100,
        )
        os.close(write_end)
        write_end = -1
        ended.returncode = int(os.read(read_end, 100).split()[1])
        return ended
    finally:
        os.close(read_end)
        if write_end >= 0:
            os.close(write_end)


@pytest.mark.parametrize("how", REDIRECTIONS)
@pytest.mark.parametrize("command", COMMANDS)
def test_no_traceback_and_the_right_exit_code(command: str, how: str) -> None:
    ended = run(command, REDIRECTIONS[how])
    assert "Traceback" not in ended.stderr
    assert "Exception ignored" not in ended.stderr
    if how == "stdout is full" and "help" in command:
        assert ended.returncode in (0, 1)  # some versions of argparse ignore that it is full
    elif how == "stdout is full" and COMMANDS[command] == 0:
        assert ended.returncode == 1
        assert "No space left on device" in ended.stderr
    else:
        assert ended.returncode == COMMANDS[command]


@pytest.mark.long
def test_under_the_strictest_interpreter() -> None:
    ended = run("run demo hello --max-tokens 2", "", "-O -W error -X dev")
    assert (ended.returncode, ended.stderr) == (0, "")
    ended = run("run demo hello --max-tokens 2", "<&- >&-", "-O -W error -X dev")
    assert (ended.returncode, ended.stderr) == (0, "")
