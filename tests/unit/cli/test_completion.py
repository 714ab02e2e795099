"""Completion of command lines in a shell."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from quire.cli.app import COMMANDS, main
from quire.cli.completion import SHELLS, completions, script


def test_commands_options_values_and_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    assert main(["alias", "small", "org/name:Q4_K_M"]) == 0
    assert completions(["ser"], COMMANDS) == ["serve"]
    assert completions(["kv", "pru"], COMMANDS) == ["prune"]
    assert completions(["nothing", ""], COMMANDS) == []
    assert "--max-model-len" in completions(["serve", "--max-m"], COMMANDS)
    assert completions(["serve", "--load-format", "gg"], COMMANDS) == ["gguf"]
    assert completions(["run", ""], COMMANDS) == ["demo", "small"]
    assert set(completions([], COMMANDS)) == {command.name for command in COMMANDS}


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_takes_the_code(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} on this machine")
    file = tmp_path / "code"
    file.write_text(script(shell))
    subprocess.run([shell, "-n", str(file)], check=True, timeout=60)


@pytest.mark.long
def test_bash_completes(tmp_path: Path) -> None:
    program = tmp_path / "quire"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m quire "$@"\n')
    program.chmod(0o755)
    code = (
        f"{script('bash')}\nPATH={tmp_path}:$PATH\n"
        "COMP_LINE='quire ser' COMP_POINT=9 COMP_WORDS=(quire ser) COMP_CWORD=1\n"
        '_quire; echo "${COMPREPLY[@]}"\n'
    )
    found = subprocess.run(
        ["bash", "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert found.stdout == "serve\n"
